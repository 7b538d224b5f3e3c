package command

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open makes a runner over dir that is closed at the end of the test.
func open(t *testing.T, dir string) *Runner {
	t.Helper()
	r, err := Open(Options{
		Dir: dir, Environ: os.Environ(), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Began: func() {}, Ended: func() {},
	})
	require.NoError(t, err)
	return r
}

func opened(t *testing.T) *Runner {
	t.Helper()
	r := open(t, t.TempDir())
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// openedForVolume is opened with the bounds of a volume case.
func openedForVolume(t *testing.T) *Runner {
	t.Helper()
	r := opened(t)
	r.bounds.kept /= scale
	r.bounds.segment /= scale
	r.bounds.text /= scale
	return r
}

func run(t *testing.T, r *Runner, script string) (id string, whole Printed) {
	t.Helper()
	started, err := r.Start(Spec{Command: script, Timeout: 60})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	whole, err = r.Wait(ctx, started.ID)
	require.NoError(t, err)
	return started.ID, whole
}

// line is a line of process output, whole.
type line struct {
	Type     string `json:"type"`
	Seq      int64  `json:"seq"`
	Data     []byte `json:"data"`
	FromSeq  int64  `json:"from_seq"`
	ToSeq    int64  `json:"to_seq"`
	Bytes    int64  `json:"bytes"`
	ExitCode *int   `json:"exit_code"`
	Reason   string `json:"reason"`
}

// follow reads a command's output after a seq until its exit line.
func follow(t *testing.T, r *Runner, id string, after int64) []line {
	t.Helper()
	cursor, err := r.Output(id, after)
	require.NoError(t, err)
	defer cursor.Close()
	var lines []line
	for {
		done, changed, err := cursor.Read(func(text []byte) error {
			var l line
			require.True(t, strings.HasSuffix(string(text), "\n"))
			require.NoError(t, json.Unmarshal(text, &l))
			lines = append(lines, l)
			return nil
		})
		require.NoError(t, err)
		if done {
			return lines
		}
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			t.Fatal("the output does not go on")
		}
	}
}

func bytesOf(lines []line, stream string) string {
	var all strings.Builder
	for _, l := range lines {
		if l.Type == stream {
			all.Write(l.Data)
		}
	}
	return all.String()
}

// alive reports whether the process whose pid is in the file runs.
func alive(t *testing.T, file string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	_, ok := readProcess(pid)
	return ok
}

func TestExitCodes(t *testing.T) {
	r := opened(t)
	for _, c := range []struct {
		script, reason string
		code           int
	}{
		{"exit 0", ReasonExited, 0},
		{"exit 7", ReasonExited, 7},
		{"kill -9 $$", ReasonKilled, -9},
		{"kill -15 $$", ReasonKilled, -15},
	} {
		t.Run(c.script, func(t *testing.T) {
			id, whole := run(t, r, c.script)
			require.Equal(t, c.code, *whole.ExitCode)
			require.Nil(t, whole.Stdout)
			lines := follow(t, r, id, 0)
			require.Len(t, lines, 1)
			require.Equal(t, c.reason, lines[0].Reason)
			require.EqualValues(t, 1, lines[0].Seq)
		})
	}
}

func TestTimeoutEndsTheWholeTreeAndIsMinusOne(t *testing.T) {
	r := opened(t)
	file := filepath.Join(t.TempDir(), "pid")
	started, err := r.Start(Spec{Command: "echo before; (trap '' TERM; setsid sleep 100 & echo $! >" + file + "; wait)", Timeout: 1})
	require.NoError(t, err)
	whole, err := r.Wait(t.Context(), started.ID)
	require.NoError(t, err)
	require.Equal(t, -1, *whole.ExitCode)
	require.Equal(t, "before\n", *whole.Stdout)
	lines := follow(t, r, started.ID, 0)
	require.Equal(t, ReasonTimedOut, lines[len(lines)-1].Reason)
	require.False(t, alive(t, file))
}

func TestStopEndsTheTreeWhateverItIgnores(t *testing.T) {
	r := opened(t)
	dir := t.TempDir()
	script := fmt.Sprintf(`trap '' TERM
sh -c 'trap "" TERM; echo $$ >%[1]s/child; while :; do sleep 1; done' &
setsid sh -c 'trap "" TERM; echo $$ >%[1]s/session; while :; do sleep 1; done' &
sleep 200 & echo $! >%[1]s/stopped; kill -STOP $!
echo up; while :; do sleep 1; done`, dir)
	started, err := r.Start(Spec{Command: script, Timeout: 300})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		for _, name := range []string{"child", "session", "stopped"} {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || len(text) == 0 {
				return false
			}
		}
		return true
	}, 20*time.Second, 10*time.Millisecond)

	require.NoError(t, r.Stop(t.Context(), started.ID, StopGrace))
	for _, name := range []string{"child", "session", "stopped"} {
		require.False(t, alive(t, filepath.Join(dir, name)), name)
	}
	lines := follow(t, r, started.ID, 0)
	exit := lines[len(lines)-1]
	require.Equal(t, ReasonStopped, exit.Reason)
	require.Equal(t, -9, *exit.ExitCode)
	require.NoError(t, r.Stop(t.Context(), started.ID, StopGrace), "stopping again does nothing")
	require.ErrorIs(t, r.Stop(t.Context(), newID(), StopGrace), ErrUnknown)
}

func TestACommandEndsWithItsShellAndItsBackgroundChildLives(t *testing.T) {
	r := opened(t)
	dir := t.TempDir()
	fifo := filepath.Join(dir, "go")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	began := time.Now()
	id, whole := run(t, r, fmt.Sprintf("(read x <%s; echo late; touch %s/wrote; sleep 100) & echo $! >%s/pid; echo started", fifo, dir, dir))
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, "started\n", *whole.Stdout)
	require.Equal(t, 0, *whole.ExitCode)
	require.Zero(t, r.Running())

	// Its write after the end neither kills it nor gets behind the exit line.
	require.NoError(t, os.WriteFile(fifo, []byte("x\n"), 0))
	require.Eventually(t, func() bool { _, err := os.Stat(dir + "/wrote"); return err == nil }, 20*time.Second, 5*time.Millisecond)
	require.True(t, alive(t, dir+"/pid"))
	lines := follow(t, r, id, 0)
	require.Equal(t, "started\n", bytesOf(lines, Stdout))
	require.Equal(t, "exit", lines[len(lines)-1].Type)

	text, err := os.ReadFile(dir + "/pid")
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.NoError(t, newTree(r.sessionOf(t, pid)).end(StopGrace))
}

func (r *Runner) sessionOf(t *testing.T, pid int) int {
	t.Helper()
	p, ok := readProcess(pid)
	require.True(t, ok)
	return p.session
}

func TestOutputOfAFastEndIsWhole(t *testing.T) {
	r := opened(t)
	for range 5 {
		_, whole := run(t, r, "seq 1 100; sleep 60 & ")
		require.Equal(t, 100, strings.Count(*whole.Stdout, "\n"))
	}
}

func TestCharactersSurviveReadBoundaries(t *testing.T) {
	r := opened(t)
	text := strings.Repeat("aé€𝄞", 20_000)
	file := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	id, whole := run(t, r, "dd bs=4093 status=none if="+file)
	sameText(t, text, *whole.Stdout)
	for _, l := range follow(t, r, id, 0) {
		if l.Type == Stdout {
			require.True(t, utf8.Valid(l.Data), "a line ends within a character")
			require.LessOrEqual(t, len(l.Data), FrameBytes)
		}
	}
}

func TestBytesThatAreNoTextSurvive(t *testing.T) {
	r := opened(t)
	raw := make([]byte, 300_000)
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(raw)
	file := filepath.Join(t.TempDir(), "raw")
	require.NoError(t, os.WriteFile(file, raw, 0o600))
	id, _ := run(t, r, "cat "+file+" >&2")
	sameText(t, string(raw), bytesOf(follow(t, r, id, 0), Stderr))
}

func TestOutputIsSeenWhileTheCommandRuns(t *testing.T) {
	r := opened(t)
	fifo := filepath.Join(t.TempDir(), "go")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	started, err := r.Start(Spec{Command: "echo one; read x <" + fifo + "; echo two", Timeout: 60})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		page, _ := r.Search(Query{CommandID: started.ID, Limit: 10})
		return len(page) == 1
	}, 20*time.Second, 10*time.Millisecond)
	page, _ := r.Search(Query{CommandID: started.ID, Limit: 10})
	first := page[0].Wire().(Printed)
	require.Equal(t, "one\n", *first.Stdout)
	require.Nil(t, first.ExitCode)

	require.NoError(t, os.WriteFile(fifo, []byte("x\n"), 0))
	_, err = r.Wait(t.Context(), started.ID)
	require.NoError(t, err)
	page, _ = r.Search(Query{CommandID: started.ID, Limit: 10})
	require.Len(t, page, 2)
	last := page[1].Wire().(Printed)
	require.Equal(t, "two\n", *last.Stdout)
	require.Equal(t, 1, last.Order)
	require.Equal(t, 0, *last.ExitCode)
}

func TestVolumeNewest8MiBAreKeptByteExact(t *testing.T) {
	r := openedForVolume(t)
	const total = 20 << 20 / scale
	id, _ := run(t, r, fmt.Sprintf("seq 1 99999999 | head -c %d", total))
	lines := follow(t, r, id, 0)
	require.Equal(t, "gap", lines[0].Type)
	require.EqualValues(t, 1, lines[0].FromSeq)
	require.Equal(t, lines[0].ToSeq, lines[0].Seq)
	require.Equal(t, lines[0].ToSeq+1, lines[1].Seq)
	kept := bytesOf(lines, Stdout)
	require.LessOrEqual(t, int64(len(kept)), r.bounds.kept)
	require.Greater(t, int64(len(kept)), r.bounds.kept-r.bounds.segment-2*FrameBytes)
	require.EqualValues(t, total, lines[0].Bytes+int64(len(kept)))
	var want strings.Builder
	for i := 1; want.Len() < total; i++ {
		fmt.Fprintln(&want, i)
	}
	require.True(t, strings.HasSuffix(want.String()[:total], kept))

	t.Run("from within the gap", func(t *testing.T) {
		again := follow(t, r, id, lines[0].ToSeq-3)
		require.Equal(t, lines[0].ToSeq-2, again[0].FromSeq)
		sameText(t, bytesOf(lines, Stdout), bytesOf(again, Stdout))
		require.Less(t, again[0].Bytes, 2*r.bounds.segment+4*FrameBytes)
	})
	t.Run("events of what was dropped are gone", func(t *testing.T) {
		page, _ := r.Search(Query{CommandID: id, Limit: 100})
		require.Less(t, len(page), 11)
		var texts strings.Builder
		for _, e := range page {
			if text := e.Wire().(Printed).Stdout; text != nil {
				texts.WriteString(*text)
			}
		}
		sameText(t, kept, texts.String())
	})
}

func TestReadingOnFromAnySeqLosesAndRepeatsNothing(t *testing.T) {
	r := opened(t)
	id, _ := run(t, r, "for i in 1 2 3 4 5 6; do echo out $i; sleep 0.01; echo err $i >&2; sleep 0.01; done")
	whole := follow(t, r, id, 0)
	for i, l := range whole {
		require.EqualValues(t, i+1, l.Seq)
		require.Equal(t, whole[i+1:], append([]line{}, follow(t, r, id, l.Seq)...), "after %d", l.Seq)
	}
}

func TestVolumeAFollowerReadsAcrossRotation(t *testing.T) {
	r := openedForVolume(t)
	const total = 12 << 20 / scale
	started, err := r.Start(Spec{Command: fmt.Sprint("seq 1 99999999 | head -c ", total), Timeout: 60})
	require.NoError(t, err)
	lines := follow(t, r, started.ID, 0)
	var got, missing int64
	last := int64(0)
	for _, l := range lines {
		if l.Type == "gap" {
			require.Equal(t, last+1, l.FromSeq)
			missing += l.Bytes
		} else {
			require.Equal(t, last+1, l.Seq)
			got += int64(len(l.Data))
		}
		last = l.Seq
	}
	require.EqualValues(t, total, got+missing)
}

func types(lines []line) []string {
	var all []string
	for _, l := range lines {
		all = append(all, l.Type)
	}
	return all
}

func TestFramesAreStandardBase64(t *testing.T) {
	r := opened(t)
	id, _ := run(t, r, `printf '\377\376\375\374'`)
	cursor, err := r.Output(id, 0)
	require.NoError(t, err)
	defer cursor.Close()
	var lines []string
	_, _, err = cursor.Read(func(text []byte) error { lines = append(lines, string(text)); return nil })
	require.NoError(t, err)
	require.Equal(t, `{"type":"stdout","seq":1,"data":"`+base64.StdEncoding.EncodeToString([]byte{255, 254, 253, 252})+"\"}\n", lines[0])
	require.Equal(t, `{"type":"exit","seq":2,"exit_code":0,"reason":"exited"}`, strings.TrimSuffix(lines[1], "\n")) //nolint:testifylint // byte for byte
}

func TestS2_021_AStartWithAKeyIsDoneOnceAlsoAfterARestart(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	mark := filepath.Join(t.TempDir(), "mark")
	started := make(chan Started, 8)
	for range cap(started) {
		go func() {
			one, err := r.Start(Spec{Command: "echo x >> " + mark, Timeout: 60, Key: "sxe_1"})
			if err == nil {
				started <- one
			}
		}()
	}
	first := <-started
	for range cap(started) - 1 {
		require.Equal(t, first, <-started)
	}
	_, err := r.Wait(t.Context(), first.ID)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	r = open(t, dir)
	again, err := r.Start(Spec{Command: "true", Timeout: 60, Key: "sxe_1"})
	require.NoError(t, err)
	require.Equal(t, first, again, "whatever the further one says")
	other, err := r.Start(Spec{Command: "true", Timeout: 60, Key: "sxe_2"})
	require.NoError(t, err)
	require.NotEqual(t, first.ID, other.ID)
	require.NoError(t, r.Close())
	content, err := os.ReadFile(mark)
	require.NoError(t, err)
	require.Equal(t, "x\n", string(content))
}
