// Package dockerengine gives tests a Docker engine and images made without any registry: the agent server of this tree by
// itself, or in a small root file system with a shell. Tests of the backend and of the built program use the same ones; it
// imports nothing of ours.
package dockerengine

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"
)

// Variable names the engine of the tests. Nothing on it is touched but what the tests have made.
const Variable = "TEST_DOCKER_HOST"

// Host returns the engine's address. Without one the test is skipped, but in CI, where it fails.
func Host(tb testing.TB) string {
	tb.Helper()
	host := os.Getenv(Variable)
	if host == "" {
		if os.Getenv("CI") == "true" {
			tb.Fatal(Variable + " is not set")
		}
		tb.Skip(Variable + " is not set")
	}
	return host
}

// Client returns a client of the engine that is closed with the test.
func Client(tb testing.TB) *client.Client {
	tb.Helper()
	engine, err := client.New(client.WithHost(Host(tb)))
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, engine.Close()) })
	return engine
}

// Image is a root file system as an image.
type Image struct {
	Name       string
	Entrypoint []string
	Files      map[string]string // path in the image → file of this machine
	Programs   map[string][]byte // path in the image → content
	Links      map[string]string // path in the image → target
	Open       []string          // directories of the image that anybody may write to
	Trees      []string          // directories of this machine, by the same path
	Cached     bool              // one that the engine has by this name is as good
	once       sync.Once
	err        error
}

// Make imports the image at the first call of a test binary and returns its name.
func (i *Image) Make(tb testing.TB) string {
	tb.Helper()
	engine := Client(tb)
	i.once.Do(func() { i.err = i.load(engine) })
	require.NoError(tb, i.err)
	return i.Name
}

// load streams the archive into the engine.
func (i *Image) load(engine *client.Client) error {
	if _, err := engine.ImageInspect(context.Background(), i.Name); i.Cached && err == nil {
		return nil
	}
	archive, w := io.Pipe()
	go func() { _ = w.CloseWithError(i.write(w)) }()
	answer, err := engine.ImageImport(context.Background(), client.ImageImportSource{Source: archive, SourceName: "-"}, i.Name,
		client.ImageImportOptions{Changes: []string{
			`ENTRYPOINT ["` + strings.Join(i.Entrypoint, `","`) + `"]`, "ENV PATH=/usr/local/bin:/usr/bin:/bin",
		}})
	if err != nil {
		return fmt.Errorf("import image %s: %w", i.Name, err)
	}
	defer answer.Close()
	if _, err := io.Copy(io.Discard, answer); err != nil {
		return fmt.Errorf("import image %s: %w", i.Name, err)
	}
	return nil
}

// write writes the root file system as a tar archive.
func (i *Image) write(to io.Writer) error {
	w := tar.NewWriter(to)
	for name, source := range i.Files {
		if err := addFile(w, name, source); err != nil {
			return err
		}
	}
	for name, content := range i.Programs {
		err := w.WriteHeader(&tar.Header{Name: inArchive(name), Mode: 0o755, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
	}
	for _, name := range i.Open {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: inArchive(name) + "/", Mode: 0o1777}); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
	}
	for _, tree := range i.Trees {
		if err := addTree(w, tree); err != nil {
			return err
		}
	}
	for name, target := range i.Links {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: inArchive(name), Linkname: target}); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

func inArchive(name string) string { return strings.TrimPrefix(path.Clean(name), "/") }

func addFile(w *tar.Writer, name, source string) error {
	f, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = w.WriteHeader(&tar.Header{Name: inArchive(name), Mode: 0o755, Size: info.Size(), ModTime: info.ModTime()})
	}
	if err == nil {
		_, err = io.Copy(w, f)
	}
	if err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	return nil
}

// addTree adds a directory with its links; everybody may read it there.
func addTree(w *tar.Writer, tree string) error {
	err := filepath.WalkDir(tree, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: inArchive(name) + "/", Mode: 0o755})
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: inArchive(name), Linkname: target})
		case d.Type().IsRegular():
			return addFile(w, name, name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("archive %s: %w", tree, err)
	}
	return nil
}

// agentServer is the static build of this tree's, once for a test binary.
var agentServer struct {
	once    sync.Once
	content []byte
	err     error
}

// buildAgentServer builds it from root, the tree's folder as seen from the test.
func buildAgentServer(root string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "automation-image-")
	if err != nil {
		return nil, fmt.Errorf("build the agent server: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "agentserver")
	build := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./cmd/agentserver")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the agent server: %w: %s", err, out)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("build the agent server: %w", err)
	}
	return content, nil
}

// serverOf returns the agent server's program.
func serverOf(tb testing.TB, root string) []byte {
	tb.Helper()
	agentServer.once.Do(func() { agentServer.content, agentServer.err = buildAgentServer(root) })
	require.NoError(tb, agentServer.err)
	return agentServer.content
}

var (
	bare, withShell, stubborn Image
	filling                   sync.Mutex // held while one of them is filled in and made
)

// Bare is an image of the agent server and nothing else.
func Bare(tb testing.TB, root string) string {
	tb.Helper()
	Host(tb)
	filling.Lock()
	defer filling.Unlock()
	bare.Name, bare.Entrypoint = "automation-test:bare", []string{"/agentserver"}
	bare.Programs = map[string][]byte{"/agentserver": serverOf(tb, root)}
	return bare.Make(tb)
}

// busybox is where Debian's static one is.
const busybox = "/bin/busybox"

// applets are the programs that boxes find in an image with a shell.
var applets = []string{
	"ash", "cat", "chmod", "cp", "date", "dd", "du", "echo", "env", "find", "grep", "gzip", "head", "id", "kill", "ln", "ls",
	"mkdir", "mv", "ps", "pwd", "rm", "sed", "sh", "sleep", "sort", "tail", "tar", "test", "touch", "tr", "true", "wc", "wget",
}

// Stubborn is an image whose agent server runs below a shell that ignores SIGTERM, so that only a kill ends it.
func Stubborn(tb testing.TB, root string) string {
	tb.Helper()
	Host(tb)
	filling.Lock()
	defer filling.Unlock()
	const script = "#!/bin/sh\ntrap '' TERM\n/agentserver \"$@\" &\nwhile :; do wait; sleep 1; done\n"
	shellFiles(tb, root, &stubborn)
	stubborn.Name, stubborn.Entrypoint = "automation-test:stubborn", []string{"/stubborn"}
	stubborn.Programs["/stubborn"] = []byte(script)
	return stubborn.Make(tb)
}

// WithShell is an image of the agent server and a shell with the usual programs, as static files.
func WithShell(tb testing.TB, root string) string {
	tb.Helper()
	Host(tb)
	filling.Lock()
	defer filling.Unlock()
	shellFiles(tb, root, &withShell)
	withShell.Name, withShell.Entrypoint = "automation-test:shell", []string{"/agentserver"}
	return withShell.Make(tb)
}

// shellFiles gives an image the agent server, a shell and the usual programs.
func shellFiles(tb testing.TB, root string, i *Image) {
	tb.Helper()
	if _, err := os.Stat(busybox); err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatal(busybox + " is not installed")
		}
		tb.Skip(busybox + " is not installed: Debian's busybox-static")
	}
	i.Programs, i.Files = map[string][]byte{"/agentserver": serverOf(tb, root)}, map[string]string{busybox: busybox}
	i.Links, i.Open = map[string]string{}, []string{"/opt"}
	for _, name := range applets {
		i.Links["/bin/"+name] = "busybox"
	}
}
