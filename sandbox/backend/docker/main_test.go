package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
)

// engineVariable names the engine of the tests. Nothing on it is touched but what carries a label of the test's own.
const engineVariable = "TEST_DOCKER_HOST"

// engineHost returns the engine, or skips where a developer has none.
func engineHost(t testing.TB) string {
	t.Helper()
	host := os.Getenv(engineVariable)
	if host == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal(engineVariable + " is not set")
		}
		t.Skip(engineVariable + " is not set")
	}
	return host
}

// image is the agent server of this tree as an image without anything else, made once for all tests.
var image struct {
	once sync.Once
	name string
	err  error
}

func imageOf(t testing.TB) string {
	t.Helper()
	host := engineHost(t)
	image.once.Do(func() { image.name, image.err = importImage(host, "../../../cmd/agentserver", "agentserver") })
	require.NoError(t, image.err)
	return image.name
}

// importImage builds a static program and imports it as an image with that entry point.
func importImage(host, source, name string) (string, error) {
	dir, err := os.MkdirTemp("", "docker-image-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, name)
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(program))}); err != nil {
		return "", err
	}
	if _, err := w.Write(program); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	engine, err := client.New(client.WithHost(host))
	if err != nil {
		return "", err
	}
	defer engine.Close()
	tag := "automation-test-" + name + ":latest"
	source2 := client.ImageImportSource{Source: &archive, SourceName: "-"}
	answer, err := engine.ImageImport(context.Background(), source2, tag, client.ImageImportOptions{Changes: []string{`ENTRYPOINT ["/` + name + `"]`}})
	if err != nil {
		return "", err
	}
	defer answer.Close()
	_, err = io.Copy(io.Discard, answer)
	return tag, err
}

// rig is a backend on the real engine with a data root and a deployment of its own.
type rig struct {
	*Backend
	testing.TB
	deployment uuid.UUID
}

// open returns one; what it made is removed with the test.
func open(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	c := Config{
		Host: engineHost(t), Image: imageOf(t), Pull: PullNever, Suspend: SuspendStop, StopGraceSeconds: 10,
		OnStart: OnStartAdopt, OnStop: OnStopStop, MemoryBytes: 256 << 20, CPUs: 2, Processes: 128,
	}
	for _, edit := range change {
		edit(&c)
	}
	b, err := New(c, Options{DataDir: t.TempDir()})
	require.NoError(t, err)
	r := &rig{Backend: b, TB: t, deployment: uuid.New()}
	t.Cleanup(func() {
		for o, err := range b.List(context.Background(), sandbox.Label{Deployment: r.deployment}) {
			require.NoError(t, err)
			require.NoError(t, b.Delete(r.ctx(), sandbox.Ref{WorkspaceID: o.Label.WorkspaceID}))
		}
		require.NoError(t, b.Close())
	})
	return r
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r.Cleanup(cancel)
	return ctx
}

// create makes a box that runs, for a conversation where spec says so.
func (r *rig) create(change ...func(*sandbox.Spec)) sandbox.Ref {
	r.Helper()
	spec := sandbox.Spec{Label: sandbox.Label{Deployment: r.deployment, WorkspaceID: uuid.Must(uuid.NewV7())}}
	for _, edit := range change {
		edit(&spec)
	}
	require.NoError(r, r.Create(r.ctx(), spec, nothing))
	ref := sandbox.Ref{WorkspaceID: spec.Label.WorkspaceID}
	require.Equal(r, models.SeenRunning, r.inspect(ref).State)
	return ref
}

func (r *rig) inspect(ref sandbox.Ref) sandbox.Observation {
	r.Helper()
	o, err := r.Inspect(r.ctx(), ref)
	require.NoError(r, err)
	return o
}

func (r *rig) agentIn(ref sandbox.Ref) sandbox.Agent {
	o := r.inspect(ref)
	return sandbox.Agent{URL: o.Identity.URL, Key: o.Identity.Key}
}

func nothing(sandbox.Identity) error { return nil }
