// Package docker is the backend whose boxes are containers of a Docker engine on this machine, from engine 20.10 (API 1.41)
// on. A box is a record and a directory below one data root, and a container made from them: what is in the directory outlives
// the container, which is stopped when the box is suspended and made anew where somebody removed it.
//
// Quirks of the engine: a stop of a container frees its port, so that the URL of a box changes with each start; removal is
// asynchronous, and the name stays taken until it is over; a 409 means three different things (a name in use, a removal in
// progress, a container in the wrong state), told apart by words; a stop or restart of the engine ends paused containers.
package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"automation/models"
	"automation/sandbox"
)

// Capabilities of the backend, where a suspend is a stop. An engine has no timers and shows no activity; looking at a
// container neither wakes it nor counts.
var Capabilities = sandbox.Capabilities{
	Suspend: sandbox.SuspendDisk, SameIdentity: true,
	List: true, ExactList: true, Labels: true,
	SuspendedCost: "disk of the host", Placed: true, Workspaces: true,
}

// nobody is as whom boxes run where the service is root and nothing else is said.
const nobody = "65532:65532"

// engineWithin bounds the first question to the engine, at the start of the service.
const engineWithin = 10 * time.Second

// Backend makes and keeps boxes on one engine. It is safe for concurrent use, by several processes too.
type Backend struct {
	config   Config
	dir      string // records and files of the boxes
	user     string // uid:gid of a box without a caller's checkout
	location string // the engine's id
	hostCPUs int    // that the engine has; 0: not known
	engine   *client.Client
	probes   *http.Client
	now      func() time.Time
	log      *slog.Logger
}

var _ sandbox.Backend = (*Backend)(nil)

// New connects to the engine and prepares the data root. An engine that cannot be reached is an error only where none was
// served before: its boxes wait for it.
func New(c Config, o Options) (*Backend, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	b := &Backend{config: c, dir: c.DataDir, user: c.User, now: o.Now, log: o.Log}
	if b.now == nil {
		b.now = time.Now
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if b.dir == "" {
		b.dir = filepath.Join(o.DataDir, "docker")
	}
	if b.user == "" {
		b.user = fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
		if os.Getuid() == 0 {
			b.user = nobody
		}
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	var err error
	if b.engine, err = client.New(client.WithHost(c.Host)); err != nil { // it negotiates the version at its first call
		return nil, fmt.Errorf("docker: AUTOMATION_DOCKER_HOST: %w", err)
	}
	// A probe leaves nothing open in a box, nor goes through a proxy.
	b.probes = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	b.clearDrafts()
	return b, b.locate()
}

// locate asks the engine who it is, which is the location of its boxes, and remembers it for a start while it is down.
func (b *Backend) locate() error {
	ctx, cancel := context.WithTimeout(context.Background(), engineWithin)
	defer cancel()
	path := filepath.Join(b.dir, engineFile)
	answer, err := b.engine.Info(ctx, client.InfoOptions{})
	if err = classify("ask the engine who it is", err); err == nil && answer.Info.ID == "" {
		err = errors.New("the engine does not say who it is")
	}
	if err == nil {
		b.location, b.hostCPUs = answer.Info.ID, answer.Info.NCPU
		b.log.Info("docker engine found", "engine", b.location, "version", answer.Info.ServerVersion, "api", b.engine.ClientVersion())
		if err := os.WriteFile(path, []byte(b.location), 0o600); err != nil {
			return fmt.Errorf("docker: remember the engine: %w", err)
		}
		return nil
	}
	known, readErr := os.ReadFile(path)
	if readErr != nil {
		return fmt.Errorf("docker: AUTOMATION_DOCKER_HOST=%s: %w", b.config.Host, err)
	}
	b.location = strings.TrimSpace(string(known))
	b.log.Warn("the docker engine is down: its boxes wait for it", "error", err)
	return nil
}

// Location is the engine's id: boxes can be reached only there.
func (b *Backend) Location() string { return b.location }

// StopsWithService reports whether the boxes of conversations are suspended when the service stops (S3-014).
func (b *Backend) StopsWithService() bool { return b.config.OnStop == OnStopStop }

// Close ends the connections to the engine.
func (b *Backend) Close() error {
	if err := b.engine.Close(); err != nil {
		return fmt.Errorf("close the connection to the engine: %w", err)
	}
	return nil
}

// Capabilities implements sandbox.Backend.
func (b *Backend) Capabilities() sandbox.Capabilities { return b.config.capabilities() }

// cpus is the limit of one box in billionths, no more than the engine has: it refuses that.
func (b *Backend) cpus() int64 {
	most := b.config.CPUs
	if b.hostCPUs > 0 {
		most = math.Min(most, float64(b.hostCPUs))
	}
	return int64(most * 1e9)
}

// userOf is as whom a caller's checkout is entered: its owner, where the service may be anybody.
func (b *Backend) userOf(info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || b.config.User != "" || os.Getuid() != 0 {
		return b.user
	}
	return fmt.Sprintf("%d:%d", stat.Uid, stat.Gid)
}

// Create writes the record, has the box named, and only then asks the engine for a container. A box that exists is kept, and
// started if it does not run.
func (b *Backend) Create(ctx context.Context, spec sandbox.Spec, seen func(sandbox.Identity) error) error {
	if spec.Label.WorkspaceID == uuid.Nil {
		return fmt.Errorf("%w: a box without a workspace id", sandbox.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("create box: %w", err)
	}
	r, err := b.newRecord(spec)
	if err != nil {
		return err
	}
	switch _, err := b.look(ctx, r.WorkspaceID); {
	case errors.Is(err, ErrNameTaken):
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	case err != nil:
		return fmt.Errorf("%w: %w", sandbox.ErrNotMade, err)
	}
	r, made, err := b.keep(r)
	if err != nil {
		return err
	}
	if err = seen(r.identity(view{})); err == nil {
		err = b.wake(ctx, r)
	}
	if err == nil || !made || errors.Is(err, ErrEngineDown) { // nobody knows what the engine has got: settled when it is back
		return err
	}
	cleanUp, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleMost)
	defer cancel()
	return errors.Join(err, b.erase(cleanUp, r))
}

// identity is what a box is called, and where its agent server listens if it does.
func (r record) identity(v view) sandbox.Identity {
	return sandbox.Identity{Kind: models.IdentityBox, ProviderID: nameOf(r.WorkspaceID), URL: v.url(), Key: r.SessionKey}
}

// Inspect asks the engine, and a container that runs whether its agent server serves. A box whose container is gone is
// suspended: its files are there, and the container is made anew from them.
func (b *Backend) Inspect(ctx context.Context, ref sandbox.Ref) (sandbox.Observation, error) {
	r, recordErr := b.record(ref.WorkspaceID)
	if recordErr != nil && !errors.Is(recordErr, sandbox.ErrGone) {
		return sandbox.Observation{}, recordErr
	}
	v, err := b.look(ctx, ref.WorkspaceID)
	if err != nil {
		return sandbox.Observation{}, err
	}
	if recordErr != nil {
		if v.missing {
			return sandbox.Observation{}, sandbox.ErrGone
		}
		r = v.record(ref.WorkspaceID) // its record was taken away by hand
	}
	o := b.observe(r, v)
	switch {
	case o.State == models.SeenProvisioning && v.url() != "" && b.answers(ctx, r, v):
		b.nowReady(r.WorkspaceID, v.state.StartedAt)
		o.State = models.SeenRunning
	case o.State == models.SeenFailed:
		o.Detail = strings.TrimSpace(o.Detail + ": " + b.lastWords(ctx, r.WorkspaceID))
	}
	return o, nil
}

// answers reports whether the agent server of a running container serves.
func (b *Backend) answers(ctx context.Context, r record, v view) bool {
	probe, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return b.agent(v, r.SessionKey).Ready(probe) == nil
}

// record is what a container's own labels and environment say, for one whose record is lost.
func (v view) record(id uuid.UUID) record {
	r := record{WorkspaceID: id}
	r.Deployment, _ = uuid.Parse(v.labels[labelDeployment])
	r.Conversation, _ = uuid.Parse(v.labels[labelConversation])
	for _, word := range v.env {
		if key, ok := strings.CutPrefix(word, "OH_SESSION_API_KEYS_0="); ok {
			r.SessionKey = key
		}
	}
	return r
}

// observe turns what the engine shows into what a backend shows, without a call to anybody.
func (b *Backend) observe(r record, v view) sandbox.Observation {
	o := sandbox.Observation{
		State: models.SeenSuspended, Identity: r.identity(v),
		Label: sandbox.Label{Deployment: r.Deployment, WorkspaceID: r.WorkspaceID},
	}
	ready := b.isReady(r.WorkspaceID, v.state.StartedAt)
	switch {
	case r.Deleting:
		o.State = models.SeenDeleting
	case v.missing:
	case v.state.Status == container.StateRunning && ready:
		o.State = models.SeenRunning
	case v.state.Status == container.StateRunning, v.state.Status == container.StateRestarting:
		o.State = models.SeenProvisioning
	case v.state.Status == container.StateRemoving: // by somebody else: the files stay
	case v.state.Status == container.StateDead:
		o.State, o.Detail = models.SeenFailed, "a removal of the container failed"
	case v.state.Status == container.StateExited && !ready && v.broke():
		o.State, o.Detail = models.SeenFailed, fmt.Sprintf("the agent server ended with %d before it served", v.state.ExitCode)
		if v.state.OOMKilled {
			o.Detail += ", out of memory"
		}
	}
	return o
}

// Exit codes of a process that a signal told to end.
const (
	exitKilled     = 128 + int(syscall.SIGKILL)
	exitTerminated = 128 + int(syscall.SIGTERM)
)

// broke reports whether a container ended by itself and with an error.
func (v view) broke() bool {
	switch v.state.ExitCode {
	case 0, exitTerminated:
		return false
	case exitKilled:
		return v.state.OOMKilled
	}
	return true
}

// Suspend pauses or stops the container, as configured. What does not run is suspended already.
func (b *Backend) Suspend(ctx context.Context, ref sandbox.Ref, _ func(sandbox.Identity) error) error {
	v, err := b.look(ctx, ref.WorkspaceID)
	if err != nil {
		return err
	}
	switch {
	case v.missing:
		_, err := b.record(ref.WorkspaceID)
		return err
	case !v.state.Running || v.state.Paused && b.config.Suspend == SuspendPause:
		return nil
	case b.config.Suspend == SuspendPause:
		_, err = b.engine.ContainerPause(ctx, v.id, client.ContainerPauseOptions{})
		err = classify("pause container", err)
	default:
		grace := b.config.StopGraceSeconds
		_, err = b.engine.ContainerStop(ctx, v.id, client.ContainerStopOptions{Timeout: &grace})
		err = classify("stop container", err)
	}
	if errors.Is(err, sandbox.ErrGone) { // removed meanwhile: its files are kept
		return nil
	}
	return err
}

// Resume starts or unpauses the container, or makes it anew. The identity stays, the URL changes.
func (b *Backend) Resume(ctx context.Context, ref sandbox.Ref, _ func(sandbox.Identity) error) error {
	r, err := b.record(ref.WorkspaceID)
	switch {
	case err != nil:
		return err
	case r.Deleting:
		return fmt.Errorf("resume box: %w", sandbox.ErrBusy)
	}
	return b.wake(ctx, r)
}

// Delete removes the container and then the files. A caller's own checkout is not among them.
func (b *Backend) Delete(ctx context.Context, ref sandbox.Ref) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("delete box: %w", err)
	}
	r, err := b.record(ref.WorkspaceID)
	if errors.Is(err, sandbox.ErrGone) {
		return b.remove(ctx, ref.WorkspaceID)
	}
	if err != nil {
		return err
	}
	return b.erase(ctx, r)
}

// erase removes container, files and record, in this order; the record says so first, for a call that is cut short.
func (b *Backend) erase(ctx context.Context, r record) error {
	if !r.Deleting {
		r.Deleting = true
		if err := b.mark(r); err != nil {
			return err
		}
	}
	if err := b.remove(ctx, r.WorkspaceID); err != nil && !errors.Is(err, sandbox.ErrGone) {
		return err
	}
	return b.discard(ctx, r.WorkspaceID)
}
