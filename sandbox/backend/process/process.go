// Package process is the backend whose boxes are directories of this host and the processes in them: the embedded default,
// for one trusted user. It keeps boxes apart and accounted for; it does not confine them, they run as the user of the service.
//
// A box is a directory named by its workspace id. Everything in it runs below a supervisor and, where a writable cgroup v2
// exists, in a cgroup of its own; both survive the service. Only what is read anew from the directory and the kernel counts
// (S0-143): nothing about a box is kept in memory.
package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/sandbox"
)

// Capabilities of the backend: suspending freezes, with memory (after a reboot, or when the agent server has died, only the
// disk is left); looking neither wakes a box nor moves its idle clock.
var Capabilities = sandbox.Capabilities{
	Suspend: sandbox.SuspendMemory, SameIdentity: true,
	List: true, ExactList: true, Labels: true, LastActivity: true,
	SuspendedCost: "memory and disk of the host", Placed: true,
}

// Backend makes and keeps boxes on this host. It is safe for concurrent use, by several processes too.
type Backend struct {
	config     Config
	dir        string // of the boxes
	executable string
	cgroups    string // where their cgroups are made, "" for none
	limits     limits
	now        func() time.Time
}

var _ sandbox.Backend = (*Backend)(nil)

// New prepares the directory of the boxes and finds out what can hold them. Errors name the variable that is wrong.
func New(c Config, o Options) (*Backend, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(o.DataDir) || !filepath.IsAbs(o.Executable) {
		return nil, fmt.Errorf("process: data directory %q and executable %q must be absolute", o.DataDir, o.Executable)
	}
	b := &Backend{
		config: c, dir: filepath.Join(o.DataDir, "boxes"), executable: o.Executable, now: o.Now,
		limits: limits{processes: c.MaxProcesses, memoryBytes: c.MaxMemoryBytes},
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	if err := b.findHold(o.Log); err != nil {
		return nil, err
	}
	b.clearStaging(context.Background(), o.Log) // a few files each
	return b, nil
}

// Capabilities implements sandbox.Backend.
func (b *Backend) Capabilities() sandbox.Capabilities { return Capabilities }

func (b *Backend) box(id uuid.UUID) box { return box{id: id, dir: filepath.Join(b.dir, id.String())} }

// Create makes the directory, has its name stored, and only then starts something in it. A box that exists is kept, and
// started if it does not run.
func (b *Backend) Create(ctx context.Context, spec sandbox.Spec, seen func(sandbox.Identity) error) error {
	if spec.Label.WorkspaceID == uuid.Nil {
		return fmt.Errorf("%w: a box without a workspace id", sandbox.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("create box: %w", err)
	}
	x := b.box(spec.Label.WorkspaceID)
	made, err := x.make(spec.Label.Deployment, b.now())
	if err != nil {
		return err
	}
	err = seen(x.identity())
	if err == nil {
		err = b.wake(ctx, x)
	}
	if err != nil && made {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
		defer cancel()
		err = errors.Join(err, ignore(b.delete(ctx, x), sandbox.ErrGone))
	}
	return err
}

// wake continues what stands still, or starts the agent server anew on the box's directory.
func (b *Backend) wake(ctx context.Context, x box) error {
	unlock, err := x.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	v, err := x.look()
	switch {
	case err != nil:
		return err
	case v.alive:
		return x.hold(v.facts).cont(ctx)
	}
	if err := b.end(ctx, x); err != nil {
		return err
	}
	return b.launch(ctx, x)
}

// Inspect reads what is so, and asks a running agent server whether it serves and when it was last used. Where the agent
// server died alone, or the directory was taken away, it ends the rest of the box.
func (b *Backend) Inspect(ctx context.Context, ref sandbox.Ref) (sandbox.Observation, error) {
	if err := ctx.Err(); err != nil {
		return sandbox.Observation{}, fmt.Errorf("inspect box: %w", err)
	}
	x := b.box(ref.WorkspaceID)
	v, err := b.lookAndEnd(ctx, x)
	if errors.Is(err, sandbox.ErrGone) {
		return b.going(ctx, x, err)
	}
	if err != nil {
		return sandbox.Observation{}, err
	}
	o := x.observe(v)
	if !v.alive || v.state == models.SeenSuspended || o.Identity.URL == "" {
		return o, nil // what stands still cannot answer, and needs not be asked
	}
	if o.State == models.SeenProvisioning && ready(ctx, o.Identity.URL) == nil {
		o.State = models.SeenRunning
		_ = os.WriteFile(x.control(readyFile), nil, 0o600) // without it the next look asks again
	}
	if o.State == models.SeenRunning {
		// A server too busy to answer still runs; its activity is unknown then.
		if at, err := activity(ctx, o.Identity.URL, b.now); err == nil {
			o.LastActivity = &at
		}
	}
	return o, nil
}

// lookAndEnd looks, and ends what an agent server that died has left, unless somebody is changing the box just now.
func (b *Backend) lookAndEnd(ctx context.Context, x box) (view, error) {
	v, err := x.look()
	if err != nil || v.alive {
		return v, err
	}
	unlock, err := x.take()
	if err != nil {
		return view{}, err
	}
	if unlock == nil { // somebody is starting it, or ending it
		v.state = models.SeenProvisioning
		return v, nil
	}
	defer unlock()
	if v, err = x.look(); err != nil || v.alive {
		return v, err
	}
	return v, b.end(ctx, x)
}

// Suspend stops everything in the box where it stands. One whose agent server died is ended: its disk is what is kept.
func (b *Backend) Suspend(ctx context.Context, ref sandbox.Ref, _ func(sandbox.Identity) error) error {
	x := b.box(ref.WorkspaceID)
	unlock, err := x.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	v, err := x.look()
	switch {
	case err != nil:
		return err
	case !v.alive:
		return b.end(ctx, x)
	case v.state == models.SeenSuspended:
		return nil
	}
	return x.hold(v.facts).stop(ctx)
}

// Resume continues the box, or starts its agent server anew on the same directory: the identity stays, the URL may change.
func (b *Backend) Resume(ctx context.Context, ref sandbox.Ref, _ func(sandbox.Identity) error) error {
	return b.wake(ctx, b.box(ref.WorkspaceID))
}

// Delete ends everything in the box and removes its directory, whatever is in it.
func (b *Backend) Delete(ctx context.Context, ref sandbox.Ref) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("delete box: %w", err)
	}
	return b.delete(ctx, b.box(ref.WorkspaceID))
}

func (b *Backend) delete(ctx context.Context, x box) error {
	unlock, err := x.lock(ctx)
	gone := errors.Is(err, sandbox.ErrGone)
	switch {
	case gone: // its directory was taken away by hand: what ran in it may still do
		err = b.end(ctx, x)
	case err == nil:
		if err = b.end(ctx, x); err == nil {
			err = x.setAside(ctx)
		}
		unlock()
	}
	if err != nil {
		return err
	}
	remains, err := x.remains()
	if err != nil {
		return err
	}
	for _, left := range remains {
		if err := left.discard(ctx); err != nil {
			return err
		}
	}
	if gone && len(remains) == 0 {
		return sandbox.ErrGone
	}
	return nil
}

// end kills all that runs in the box: its cgroup of now and of its last start, its supervisor's tree, what carries its
// marker. ErrBusy when something does not end in time.
func (b *Backend) end(ctx context.Context, x box) error {
	ctx, cancel := context.WithTimeoutCause(ctx, killPatience, fmt.Errorf("end box: %w", sandbox.ErrBusy))
	defer cancel()
	facts, err := x.readStart()
	if err != nil {
		return err
	}
	groups := map[string]bool{facts.Cgroup: true, b.cgroupOf(x): true}
	for dir := range groups {
		if err := (cgroupHold{dir: dir, id: x.id}).kill(ctx); err != nil {
			return err
		}
	}
	return treeHold{box: x, facts: facts}.kill(ctx)
}

// view is what a box's directory and the kernel show of it.
type view struct {
	state models.Observed
	alive bool // its agent server exists, running or stopped
	facts start
}

// look reads what is so, without a call to the box. ErrGone only where there is no directory.
func (x box) look() (view, error) {
	if err := x.there(); err != nil {
		return view{}, err
	}
	facts, err := x.readStart()
	if err != nil {
		return view{}, err
	}
	facts.Supervisor.reap()
	v := view{state: models.SeenSuspended, alive: facts.Server.alive(), facts: facts}
	if !v.alive {
		return v, nil
	}
	stopped, err := x.hold(facts).stopped()
	switch {
	case err != nil:
		return view{}, err
	case stopped:
	case x.has(readyFile):
		v.state = models.SeenRunning
	default:
		v.state = models.SeenProvisioning
	}
	return v, nil
}

// going shows a box without a directory: deleting while a part of it is left, else gone. Where its directory was taken away by
// hand, what ran in it may still do, and is ended: nobody looks at a box again that is gone.
func (b *Backend) going(ctx context.Context, x box, gone error) (sandbox.Observation, error) {
	remains, err := x.remains()
	if err != nil {
		return sandbox.Observation{}, err
	}
	if len(remains) == 0 {
		if err := b.end(ctx, x); err != nil {
			return sandbox.Observation{}, err
		}
		return sandbox.Observation{}, gone
	}
	return sandbox.Observation{State: models.SeenDeleting, Identity: x.identity()}, nil
}

// observe turns a view into what a backend shows.
func (x box) observe(v view) sandbox.Observation {
	o := sandbox.Observation{State: v.state, Identity: x.identity()}
	if !v.alive {
		o.Identity.URL = "" // nobody of ours listens there any more
	}
	if r, err := x.record(); err == nil {
		o.Label = sandbox.Label{Deployment: r.Deployment, WorkspaceID: x.id}
	}
	return o
}

// List yields the deployment's boxes as their directories show them; the boxes themselves are not asked.
func (b *Backend) List(ctx context.Context, label sandbox.Label) iter.Seq2[sandbox.Observation, error] {
	return func(yield func(sandbox.Observation, error) bool) {
		entries, err := os.ReadDir(b.dir)
		if err != nil {
			yield(sandbox.Observation{}, fmt.Errorf("list boxes: %w", err))
			return
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				yield(sandbox.Observation{}, fmt.Errorf("list boxes: %w", err))
				return
			}
			x, aside, ok := boxNamed(b.dir, e.Name())
			if !ok || (label.WorkspaceID != uuid.Nil && label.WorkspaceID != x.id) {
				continue
			}
			o, mine, err := x.listed(label.Deployment, aside)
			if (mine || err != nil) && !yield(o, err) {
				return
			}
		}
	}
}

// listed looks at a box for List. One that goes while we look, or does not say whose it is, is not the deployment's.
func (x box) listed(deployment uuid.UUID, aside bool) (sandbox.Observation, bool, error) {
	r, err := x.record()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return sandbox.Observation{}, false, nil
	}
	if err == nil && r.Deployment != deployment {
		return sandbox.Observation{}, false, nil
	}
	v := view{state: models.SeenDeleting}
	if err == nil && !aside {
		v, err = x.look()
	}
	if errors.Is(err, sandbox.ErrGone) {
		return sandbox.Observation{}, false, nil
	}
	if err != nil {
		return sandbox.Observation{}, false, fmt.Errorf("list boxes: %s: %w", x.id, err)
	}
	return x.observe(v), true, nil
}
