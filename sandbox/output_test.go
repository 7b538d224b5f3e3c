package sandbox

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheNewest8MiBAreKeptWithAGapLine(t *testing.T) {
	tail := &outputTail{limit: 100}
	for n := int64(1); n <= 10; n++ {
		tail.add(Frame{Type: FrameStdout, Seq: n, Data: []byte(strings.Repeat("x", 30))})
	}
	code := 3
	tail.add(Frame{Type: FrameKeepalive})
	tail.add(Frame{Type: FrameExit, Seq: 11, ExitCode: &code, Reason: "exited"})
	lines := tail.lines()
	require.Len(t, lines, 5)
	require.Equal(t, Frame{Type: FrameGap, Seq: 7, FromSeq: 1, ToSeq: 7, Bytes: 210}, lines[0])
	for n, f := range lines[1:4] {
		require.EqualValues(t, 8+n, f.Seq)
	}
	require.Equal(t, 3, *lines[4].ExitCode)
}

func TestAGapOfTheBoxIsKept(t *testing.T) {
	tail := &outputTail{limit: 100}
	tail.add(Frame{Type: FrameGap, Seq: 4, FromSeq: 1, ToSeq: 4, Bytes: 1000})
	tail.add(Frame{Type: FrameStderr, Seq: 5, Data: []byte("end")})
	lines := tail.lines()
	require.Equal(t, Frame{Type: FrameGap, Seq: 4, FromSeq: 1, ToSeq: 4, Bytes: 1000}, lines[0])
	require.Equal(t, Frame{Type: FrameExit, Seq: 6, Reason: "running"}, lines[2], "there is always a last line")
}

func TestFramesAreEncodedWhileTheyAreRead(t *testing.T) {
	text, err := io.ReadAll(&frameReader{frames: []Frame{{Type: FrameStdout, Seq: 1, Data: []byte("hi")}, {Type: FrameExit, Seq: 2}}})
	require.NoError(t, err)
	require.Equal(t, []string{`{"type":"stdout","seq":1,"data":"aGk="}`, `{"type":"exit","seq":2}`, ""}, strings.Split(string(text), "\n"))
}
