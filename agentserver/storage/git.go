package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// gitLimit is how long git may look at one checkout; it keeps that checkout's dependencies and nothing else.
const gitLimit = 30 * time.Second

// Reasons why git decides nothing about a checkout.
const (
	reasonGitSlow    = "git did not answer in time"
	reasonGitMissing = "git is not installed"
	reasonNoIndex    = "the checkout has no index"
	reasonGitNoRoom  = "git has no place to work in"
)

// git asks which directories a checkout's own rules ignore. It never runs with what an agent can configure: not the
// checkout's configuration (file system monitors, other working trees), not the user's or the machine's, and of the ignore
// rules only the .gitignore files that are the project's. It gets a repository of ours that is empty, the checkout as the
// working tree, and the checkout's index, which says what is tracked.
type git struct {
	empty   string // a directory that looks like a repository; "": there was no room for one
	program string
	limit   time.Duration
}

// newGit makes the empty repository. On a full disk there may be no room for it: then nothing is decided, and everything
// that needs no git goes on (BR-23).
func newGit(limit time.Duration) (*git, error) {
	g := &git{program: "git", limit: limit}
	empty, err := os.MkdirTemp("", "agent-server-git-")
	if err != nil {
		return g, fmt.Errorf("git: %w", err)
	}
	err = errors.Join(
		os.Mkdir(filepath.Join(empty, "objects"), 0o700), os.Mkdir(filepath.Join(empty, "refs"), 0o700),
		os.WriteFile(filepath.Join(empty, "HEAD"), []byte("ref: refs/heads/none\n"), 0o600),
	)
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

// ignored lists the directories that are ignored as a whole and hold nothing tracked, relative to the checkout. Names are
// bytes: what is not UTF-8 is a name like any other.
func (g *git) ignored(ctx context.Context, checkout handle, path string) (names []string, refuse string) {
	if g.empty == "" {
		return nil, reasonGitNoRoom
	}
	index, err := indexOf(checkout, path)
	if err != nil {
		return nil, reasonNoIndex
	}
	bounded, cancel := context.WithTimeout(ctx, g.limit)
	defer cancel()
	call := exec.CommandContext(bounded, g.program,
		"-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "-c", "safe.directory=*", "--no-optional-locks",
		"ls-files", "-z", "--others", "--ignored", "--directory", "--exclude-per-directory=.gitignore")
	call.Dir = path
	call.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "GIT_DIR=" + g.empty, "GIT_WORK_TREE=" + path, "GIT_INDEX_FILE=" + index,
	}
	call.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	call.Cancel = func() error { return syscall.Kill(-call.Process.Pid, syscall.SIGKILL) }
	call.WaitDelay = time.Second
	var said bytes.Buffer
	call.Stderr = &said
	output, err := call.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, reasonGitMissing
	case bounded.Err() != nil:
		return nil, reasonGitSlow
	case err != nil:
		first, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
		return nil, "git failed: " + first
	}
	for name := range strings.SplitSeq(string(output), "\x00") {
		if dir, ok := strings.CutSuffix(name, "/"); ok {
			names = append(names, dir)
		}
	}
	return names, ""
}

// indexOf finds the index of a checkout, whose .git is a directory or a file that names one.
func indexOf(checkout handle, path string) (string, error) {
	st, err := checkout.stat(".git")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(path, ".git")
	if isFile(st) {
		text, err := checkout.readFile(".git", 4096)
		if err != nil {
			return "", err
		}
		target, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir: ")
		if !ok {
			return "", fmt.Errorf("%s names no repository", dir)
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(path, target)
		}
		dir = target
	} else if !isDir(st) {
		return "", fmt.Errorf("%s is no repository", dir)
	}
	index := filepath.Join(dir, "index")
	var found unix.Stat_t
	if err := unix.Lstat(index, &found); err != nil {
		return "", err
	}
	if !isFile(found) {
		return "", fmt.Errorf("%s is no file", index)
	}
	return index, nil
}
