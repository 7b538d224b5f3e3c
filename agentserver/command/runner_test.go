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

func TestARestartedServerKnowsWhatHadFinished(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	id, whole := run(t, r, "echo out; echo err >&2; exit 3")
	before := follow(t, r, id, 0)
	require.NoError(t, r.Close())

	r = open(t, dir)
	defer func() { require.NoError(t, r.Close()) }()
	require.Equal(t, before, follow(t, r, id, 0))
	page, next := r.Search(Query{Limit: 100})
	require.Empty(t, next)
	require.Len(t, page, 2)
	require.Equal(t, "echo out; echo err >&2; exit 3", page[0].Wire().(Started).Command)
	require.Equal(t, whole, page[1].Wire())
	again, err := r.Wait(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, whole, again)
	newer, _ := run(t, r, "true")
	page, _ = r.Search(Query{Kind: KindCommand, Descending: true, Limit: 1})
	require.Equal(t, newer, page[0].ID)
}

func TestACommandWhoseServerDiedIsLostAndEnded(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	started, err := r.Start(Spec{Command: "echo half; sleep 100", Timeout: 100})
	require.NoError(t, err)
	cursor, err := r.Output(started.ID, 0)
	require.NoError(t, err)
	for printed := false; !printed; {
		_, changed, err := cursor.Read(func([]byte) error { printed = true; return nil })
		require.NoError(t, err)
		if !printed {
			<-changed
		}
	}
	cursor.Close()
	// The record as a server that is killed now would leave it, with half a line at the end.
	copied := t.TempDir()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(filepath.Join(dir, started.ID, recordName))
		return err == nil && strings.Contains(string(text), `"process"`)
	}, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, os.CopyFS(copied, os.DirFS(dir)))
	file, err := os.OpenFile(filepath.Join(copied, started.ID, "out.000000000001.0"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(`{"type":"stdout","seq":2,"da`)
	require.NoError(t, err)
	require.NoError(t, file.Close())

	second := open(t, copied)
	lines := follow(t, second, started.ID, 0)
	require.Equal(t, "half\n", bytesOf(lines, Stdout))
	require.Equal(t, line{Type: "exit", Seq: 2, ExitCode: lines[1].ExitCode, Reason: ReasonLost}, lines[1])
	require.Equal(t, -1, *lines[1].ExitCode)
	require.NoError(t, second.Close())
	_, err = r.Wait(t.Context(), started.ID)
	require.NoError(t, err, "what was left of it has been ended")
	require.NoError(t, r.Close())
}

func TestAFullDiskCostsOutputButNoCommand(t *testing.T) {
	r := opened(t)
	first, second := filepath.Join(t.TempDir(), "go"), filepath.Join(t.TempDir(), "go")
	require.NoError(t, syscall.Mkfifo(first, 0o600))
	require.NoError(t, syscall.Mkfifo(second, 0o600))
	started, err := r.Start(Spec{Command: "echo one; read x <" + first + "; echo two; read x <" + second + "; echo three; exit 5", Timeout: 60})
	require.NoError(t, err)
	reached := func(seq int64) {
		require.Eventually(t, func() bool { n, _ := r.NewestSeq(started.ID); return n >= seq }, 20*time.Second, 5*time.Millisecond)
	}
	reached(1)
	j, _ := r.job(started.ID)
	j.output.mu.Lock()
	require.NoError(t, j.output.file.Close()) // every write fails now
	j.output.mu.Unlock()
	require.NoError(t, os.WriteFile(first, []byte("x\n"), 0))
	reached(2)
	require.NoError(t, os.WriteFile(second, []byte("x\n"), 0))
	whole, err := r.Wait(t.Context(), started.ID)
	require.NoError(t, err)
	require.Equal(t, 5, *whole.ExitCode)
	lines := follow(t, r, started.ID, 0)
	require.Equal(t, []string{"stdout", "gap", "stdout", "exit"}, types(lines))
	require.EqualValues(t, len("two\n"), lines[1].Bytes)
	require.Equal(t, "one\nthree\n", bytesOf(lines, Stdout))
}

// sameText compares long texts without printing them.
func sameText(t *testing.T, want, got string) {
	t.Helper()
	require.Len(t, got, len(want))
	at := 0
	for at < len(want) && want[at] == got[at] {
		at++
	}
	require.Equal(t, len(want), at, "they differ from there on")
}

func types(lines []line) []string {
	var all []string
	for _, l := range lines {
		all = append(all, l.Type)
	}
	return all
}

func TestCommandsRunWithoutAPlaceToKeepThem(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	r := open(t, dir)
	require.NoError(t, os.Remove(dir))
	id, whole := run(t, r, "echo lost; exit 4")
	require.Equal(t, 4, *whole.ExitCode)
	require.Nil(t, whole.Stdout)
	lines := follow(t, r, id, 0)
	require.Equal(t, []string{"gap", "exit"}, types(lines))
	require.EqualValues(t, len("lost\n"), lines[0].Bytes)
	require.NoError(t, r.Close())
}

func TestSearchPagesInBothOrders(t *testing.T) {
	r := opened(t)
	var ids []string
	for i := range 5 {
		id, _ := run(t, r, fmt.Sprint("echo ", i))
		ids = append(ids, id)
	}
	for _, descending := range []bool{false, true} {
		var got []string
		query := Query{Kind: KindCommand, Descending: descending, Limit: 2}
		for {
			page, next := r.Search(query)
			for _, e := range page {
				got = append(got, e.ID)
			}
			if next == "" {
				break
			}
			query.PageID = next
		}
		want := append([]string(nil), ids...)
		if descending {
			for i := range len(want) / 2 {
				want[i], want[len(want)-1-i] = want[len(want)-1-i], want[i]
			}
		}
		require.Equal(t, want, got)
	}
	page, _ := r.Search(Query{PageID: "nonsense", Limit: 1})
	require.Equal(t, ids[0], page[0].ID, "an unknown page starts from the beginning")
	all, _ := r.Search(Query{Limit: 100})
	require.Len(t, all, 10)
	page, _ = r.Search(Query{Since: all[3].At, Before: all[5].At, Limit: 100})
	require.Len(t, page, 2)
	zero := 0
	page, _ = r.Search(Query{OrderAbove: &zero, Limit: 100})
	require.Empty(t, page)
	below := -5
	page, _ = r.Search(Query{OrderAbove: &below, Limit: 100})
	require.Len(t, page, 5, "outputs only")
}

func TestClearLeavesWhatRuns(t *testing.T) {
	r := opened(t)
	done, _ := run(t, r, "true")
	started, err := r.Start(Spec{Command: "sleep 100", Timeout: 100})
	require.NoError(t, err)
	require.Equal(t, 2, r.Clear())
	_, err = r.Output(done, 0)
	require.ErrorIs(t, err, ErrUnknown)
	require.NoDirExists(t, filepath.Join(r.options.Dir, done))
	require.NoError(t, r.Stop(t.Context(), started.ID, StopGrace))
	require.Equal(t, 2, r.Clear())
}

func TestVolumeOldestFinishedCommandsGoFirst(t *testing.T) {
	r := openedForVolume(t)
	const size = 100 << 10
	big := strings.Repeat("#", size-1)
	var ids []string
	for range r.bounds.text/size + 5 {
		started, err := r.Start(Spec{Command: ":" + big, Timeout: 10})
		require.NoError(t, err)
		_, err = r.Wait(t.Context(), started.ID)
		require.NoError(t, err)
		ids = append(ids, started.ID)
	}
	_, first := r.job(ids[0])
	_, last := r.job(ids[len(ids)-1])
	require.False(t, first)
	require.True(t, last)
	entries, err := os.ReadDir(r.options.Dir)
	require.NoError(t, err)
	require.Len(t, entries, int(r.bounds.text/size))
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
