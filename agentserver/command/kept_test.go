package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
