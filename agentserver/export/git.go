package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// gitLimit is how long one call of git may take.
const gitLimit = 5 * time.Minute

// emptyTree is git's name of a tree without files.
const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

// repository is a git checkout. Its configuration is an agent's to write and can name programs to run, so only questions that
// run none are asked with it; a patch is made with a repository of ours that borrows its objects.
type repository struct {
	root    string
	dir     string // .git, or what a .git file names
	objects string
	branch  string // "" when detached
	head    string // "" before the first commit
	remote  string
}

func openRepository(ctx context.Context, root string) (*repository, error) {
	g := &repository{root: root}
	paths, err := g.ask(ctx, "rev-parse", "--absolute-git-dir", "--git-path", "objects")
	if err != nil {
		return nil, &RequestError{"Not a git repository: Not a git repository: " + root}
	}
	g.dir, g.objects, _ = strings.Cut(paths, "\n")
	if !filepath.IsAbs(g.objects) {
		g.objects = filepath.Join(root, g.objects)
	}
	g.branch, _ = g.ask(ctx, "symbolic-ref", "--short", "--quiet", "HEAD") // none: detached
	g.head, _ = g.commit(ctx, "HEAD")                                      // none: no commit yet
	g.remote, _ = g.ask(ctx, "config", "--get", "remote.origin.url")       // none
	return g, nil
}

// autoBase is what the work here began from: the branch of the same name at origin, where it left origin's own branch, or
// nothing at all. A detached head is its own base.
func (g *repository) autoBase(ctx context.Context) (string, error) {
	if g.branch == "" && g.head != "" {
		return g.head, nil
	}
	if base, err := g.commit(ctx, "refs/remotes/origin/"+g.branch); err == nil {
		return base, nil
	}
	if base, err := g.ask(ctx, "merge-base", "HEAD", "refs/remotes/origin/HEAD"); err == nil {
		return base, nil
	}
	return emptyTree, ctx.Err()
}

func (g *repository) commit(ctx context.Context, ref string) (string, error) {
	return g.ask(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
}

// ask asks the repository itself.
func (g *repository) ask(ctx context.Context, arguments ...string) (string, error) {
	var answer bytes.Buffer
	err := run(ctx, g.root, nil, &answer, arguments...)
	return strings.TrimSpace(answer.String()), err
}

// patch writes the difference of the working tree from a base: changed, new and removed files, but what matches the path
// specifications.
func (g *repository) patch(ctx context.Context, w io.Writer, base string, specs []string) (err error) {
	ours, err := os.MkdirTemp("", "agent-server-patch-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(ours)) }()
	err = errors.Join(
		os.Mkdir(filepath.Join(ours, "objects"), 0o700), os.Mkdir(filepath.Join(ours, "refs"), 0o700),
		os.WriteFile(filepath.Join(ours, "HEAD"), []byte("ref: refs/heads/none\n"), 0o600),
	)
	if err != nil {
		return err
	}
	environment := []string{"GIT_DIR=" + ours, "GIT_WORK_TREE=" + g.root, "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + g.objects}
	specs = append([]string{"--", "."}, specs...)
	for _, step := range [][]string{{"read-tree", base}, append([]string{"add", "--all"}, specs...)} {
		if err := run(ctx, g.root, environment, io.Discard, step...); err != nil {
			return err
		}
	}
	return run(ctx, g.root, environment, w, append([]string{"diff", "--binary", "--no-ext-diff", "--no-textconv", "--cached", base}, specs...)...)
}

// run runs git with nothing of the user's or the machine's configuration, within its limit.
func run(ctx context.Context, dir string, environment []string, w io.Writer, arguments ...string) error {
	bounded, cancel := context.WithTimeout(ctx, gitLimit)
	defer cancel()
	call := exec.CommandContext(bounded, "git", append([]string{
		"-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false", "-c", "safe.directory=*",
		"-c", "core.quotePath=true", "--no-optional-locks", "--no-pager", "--no-replace-objects",
	}, arguments...)...)
	call.Dir = dir
	call.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_TERMINAL_PROMPT=0", "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=none",
	}, environment...)
	call.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	call.Cancel = func() error { return syscall.Kill(-call.Process.Pid, syscall.SIGKILL) }
	call.WaitDelay = time.Second
	var said bytes.Buffer
	call.Stdout, call.Stderr = w, &said
	if err := call.Run(); err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
		return fmt.Errorf("git %s: %w: %s", arguments[0], errors.Join(bounded.Err(), err), first)
	}
	return nil
}

// Patch writes the difference of the working tree from the base, which has been found before.
func (w *Workspace) Patch(ctx context.Context, to io.Writer) error {
	return w.git.patch(ctx, to, w.base, pathSpecs(w.excludes))
}

// pathSpecs says the patterns in git's words: a bare name matches at any depth, one with a slash from the top on, and one that
// ends in a slash a directory only.
func pathSpecs(excludes []string) []string {
	var specs []string
	for _, pattern := range excludes {
		name := strings.TrimRight(pattern, "/")
		if name == "" {
			continue
		}
		if !strings.Contains(name, "/") {
			name = "**/" + name
		}
		if !strings.HasSuffix(pattern, "/") {
			specs = append(specs, ":(glob,exclude)"+name)
		}
		specs = append(specs, ":(glob,exclude)"+name+"/**")
	}
	return specs
}
