package storage

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// gitLimit is how long git may look at one workspace; it keeps that workspace's dependencies and nothing else.
const gitLimit = 30 * time.Second

// Bounds of what git may say about one checkout, in bytes, and of what it is asked about in one call: an agent can make as many
// names as it likes, and beyond the latter it is asked about everything.
const (
	answerLimit   = 4 << 20
	questionLimit = 64 << 10
)

// Reasons why git decides nothing about a checkout.
const (
	reasonGitSlow    = "git did not answer in time"
	reasonGitMissing = "git is not installed"
	reasonNoIndex    = "the checkout has no index"
	reasonOddIndex   = "the checkout's index cannot be read"
	reasonGitNoRoom  = "git has no place to work in"
	reasonGitMuch    = "the checkout ignores too many directories"
)

// git asks which directories a checkout's own rules ignore. It never runs with what an agent can configure: not the
// checkout's configuration (file system monitors, other working trees), not the user's or the machine's, and of the ignore
// rules only the .gitignore files that are the project's. It gets a repository of ours that is empty, the checkout as the
// working tree, and the checkout's index, which says what is tracked.
type git struct {
	empty   string // holds a directory for each length of object names that looks like a repository; "": there was no room
	program string
	limit   time.Duration
}

// newGit makes the empty repositories. On a full disk there may be no room for them: then nothing is decided, and everything
// that needs no git goes on (BR-23).
func newGit(limit time.Duration) (*git, error) {
	g := &git{program: "git", limit: limit}
	empty, err := os.MkdirTemp("", "agent-server-git-")
	if err != nil {
		return g, fmt.Errorf("git: %w", err)
	}
	for names, config := range emptyConfigs {
		dir := filepath.Join(empty, string(names))
		err = errors.Join(
			err, os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(dir, "objects"), 0o700), os.Mkdir(filepath.Join(dir, "refs"), 0o700),
			os.WriteFile(filepath.Join(dir, "HEAD"), []byte("ref: refs/heads/none\n"), 0o600),
			os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600),
		)
	}
	if err != nil {
		return g, fmt.Errorf("git: %w", errors.Join(err, os.RemoveAll(empty)))
	}
	g.empty = empty
	return g, nil
}

func (g *git) close() {
	if g.empty != "" {
		_ = os.RemoveAll(g.empty)
	}
}

// ignored lists the directories that are ignored as a whole and hold nothing tracked, relative to the checkout: those among
// these names in its top directory and beneath them, all for nil. Names are bytes: what is not UTF-8 is a name like any other. It ends
// with ctx.
func (g *git) ignored(ctx context.Context, checkout handle, path string, tops []string) (names []string, refuse string) {
	if g.empty == "" {
		return nil, reasonGitNoRoom
	}
	index, err := indexOf(checkout, path)
	if err != nil {
		return nil, reasonNoIndex
	}
	format, err := formatOf(index)
	if err != nil {
		return nil, reasonOddIndex
	}
	call := g.call(ctx, path, index, format, tops)
	answer, said := directories{left: answerLimit}, firstLine{}
	call.Stdout, call.Stderr = &answer, &said
	err = call.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, reasonGitMissing
	case ctx.Err() != nil:
		return nil, reasonGitSlow
	case answer.left < 0:
		return nil, reasonGitMuch
	case err != nil:
		return nil, "git failed: " + cmp.Or(said.text(), err.Error())
	}
	return answer.names, ""
}

// call is git, listing what a checkout ignores.
func (g *git) call(ctx context.Context, path, index string, format format, tops []string) *exec.Cmd {
	arguments := []string{
		"-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "-c", "safe.directory=*", "--no-optional-locks",
		"ls-files", "-z", "--others", "--ignored", "--directory", "--exclude-per-directory=.gitignore", "--",
	}
	asked := 0
	for _, name := range tops {
		asked += len(name) + 1
	}
	if asked <= questionLimit {
		arguments = append(arguments, tops...)
	}
	call := exec.CommandContext(ctx, g.program, arguments...)
	call.Dir = path
	call.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "GIT_LITERAL_PATHSPECS=1",
		"GIT_DIR=" + filepath.Join(g.empty, string(format)), "GIT_WORK_TREE=" + path, "GIT_INDEX_FILE=" + index,
	}
	call.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	call.Cancel = func() error { return syscall.Kill(-call.Process.Pid, syscall.SIGKILL) }
	call.WaitDelay = time.Second
	return call
}

// directories keeps the directories of a list of names, each with a NUL at its end; files are in it too, and there may be
// very many.
type directories struct {
	names []string
	rest  []byte // of a name that has not come whole
	left  int    // bytes that may still be kept; negative: there were more
}

// Write takes the next part of the list.
func (d *directories) Write(text []byte) (int, error) {
	d.rest = append(d.rest, text...)
	for {
		name, rest, whole := bytes.Cut(d.rest, []byte{0})
		if !whole {
			break
		}
		if dir, ok := bytes.CutSuffix(name, []byte("/")); ok {
			d.left -= len(dir) + 32 // as what keeps it takes too
			d.names = append(d.names, string(dir))
		}
		d.rest = rest
	}
	if d.left -= max(0, len(d.rest)-answerLimit); d.left < 0 {
		return 0, errors.New(reasonGitMuch)
	}
	return len(text), nil
}

// firstLine keeps the beginning of what a program says.
type firstLine struct{ said []byte }

// Write takes the next part.
func (l *firstLine) Write(text []byte) (int, error) {
	l.said = append(l.said, text[:min(len(text), 512-min(len(l.said), 512))]...)
	return len(text), nil
}

func (l *firstLine) text() string {
	first, _, _ := strings.Cut(strings.TrimSpace(string(l.said)), "\n")
	return first
}
