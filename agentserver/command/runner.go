// Package command runs shell commands in the box and keeps what they printed. Each runs in a session of its own; its
// output is stored as it comes and can be read from any line on; it has ended when its shell has, whatever it left in the
// background; and what is kept survives the server. Everything lies in one directory, reached by its handle.
package command

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

// Bounds of what is kept of finished commands; the oldest go first.
const (
	keptCommands = 1000
	keptTotal    = 256 << 20 // bytes on disk
	keptText     = 16 << 20  // bytes of command text, which is held in memory
)

// Reasons of an exit.
const (
	ReasonExited      = "exited"
	ReasonKilled      = "killed"       // by a signal that was not ours
	ReasonStopped     = "stopped"      // by Stop, or because the server stopped
	ReasonTimedOut    = "timed_out"    // exit code -1
	ReasonStartFailed = "start_failed" // exit code -1
	ReasonLost        = "lost"         // the server died meanwhile: exit code -1
)

// Errors that callers decide on.
var (
	ErrUnknown  = errors.New("no such command")
	ErrStopping = errors.New("server is stopping")
)

// Options of a Runner. Began and Ended are called around the life of each command.
type Options struct {
	Dir          string   // made when missing, 0700
	Environ      []string // of the commands
	Log          *slog.Logger
	Now          func() time.Time
	Began, Ended func()
}

// Spec is what to run.
type Spec struct {
	Command string  // for /bin/sh -c
	Cwd     *string // nil: that of the server
	Timeout int     // seconds
	// Key, unless it is empty, names the start: as long as its command is known, a further one with the same key is that command.
	Key string
}

// Runner runs commands. Make it with Open and Close it.
type Runner struct {
	options Options
	log     *slog.Logger
	dir     *os.Root
	bounds  bounds

	mu        sync.Mutex
	jobs      map[string]*job
	events    []Event // in the order of At
	lastStamp time.Time
	running   int
	closed    bool
	leftovers map[*os.File]bool // pipes of what finished commands left in the background

	wg sync.WaitGroup
}

// Open makes a Runner over the directory, with what an earlier one left there.
func Open(options Options) (*Runner, error) {
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of commands: %w", err)
	}
	dir, err := os.OpenRoot(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("directory of commands: %w", err)
	}
	r := &Runner{options: options, log: options.Log, dir: dir, bounds: usualBounds, jobs: map[string]*job{}, leftovers: map[*os.File]bool{}}
	if err := r.load(); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return r, nil
}

// Start starts a command. What goes wrong in starting it becomes its output; the only error is ErrStopping.
func (r *Runner) Start(spec Spec) (Started, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return Started{}, ErrStopping
	}
	if earlier, ok := r.named(spec.Key); ok {
		return earlier.started(), nil
	}
	j := &job{runner: r, id: newID(), spec: spec, done: make(chan struct{}), stop: make(chan struct{})}
	r.running++
	r.options.Began()
	event := Event{ID: j.id, At: r.stamp(), Order: -1, job: j}
	r.jobs[j.id] = j
	r.events = append(r.events, event)
	j.began = event.At
	j.prepare() // inside the lock: whoever finds the command finds its record
	r.wg.Go(j.run)
	return event.started(), nil
}

// named returns the start that has the key. The caller holds mu.
func (r *Runner) named(key string) (Event, bool) {
	for _, e := range r.events {
		if key != "" && e.Order < 0 && e.job.spec.Key == key {
			return e, true
		}
	}
	return Event{}, false
}

// Wait waits until the command has ended and returns all that is kept of its output as one piece.
func (r *Runner) Wait(ctx context.Context, id string) (Printed, error) {
	j, ok := r.job(id)
	if !ok {
		return Printed{}, ErrUnknown
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		return Printed{}, ctx.Err()
	}
	whole := j.last
	whole.Order, whole.from, whole.to = 0, 1, j.end.Seq-1
	return whole.printed(), nil
}

// Stop ends a command and all that came from it, and waits for that: what does not stop at a SIGTERM within grace is killed.
// Stopping a finished one does nothing, and one that is being stopped keeps its grace.
func (r *Runner) Stop(ctx context.Context, id string, grace time.Duration) error {
	j, ok := r.job(id)
	if !ok {
		return ErrUnknown
	}
	j.requestStop(grace)
	select {
	case <-j.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Output returns a cursor over the lines of a command after seq after.
func (r *Runner) Output(id string, after int64) (*Cursor, error) {
	j, ok := r.job(id)
	if !ok {
		return nil, ErrUnknown
	}
	return newCursor(j.output, after), nil
}

// NewestSeq is the seq of a command's newest line, the exit line included.
func (r *Runner) NewestSeq(id string) (int64, error) {
	j, ok := r.job(id)
	if !ok {
		return 0, ErrUnknown
	}
	now := j.output.view()
	if now.end != nil {
		return now.end.Seq, nil
	}
	return now.last, nil
}

// Clear forgets the finished commands and returns how many events they had. Running ones stay: their end would be lost.
func (r *Runner) Clear() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.events)
	var gone []*job
	for _, j := range r.jobs {
		if j.finished() {
			gone = append(gone, j)
		}
	}
	r.forget(gone)
	return before - len(r.events)
}

// WhileIdle runs f while no command runs and none can start, and reports whether it did: f must be short.
func (r *Runner) WhileIdle(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running > 0 {
		return false
	}
	f()
	return true
}

// Running is the number of commands that run.
func (r *Runner) Running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}

// Close stops what runs, lets go of what was left in the background, and waits.
func (r *Runner) Close() error {
	r.mu.Lock()
	r.closed = true
	for _, j := range r.jobs {
		j.requestStop(StopGrace)
	}
	r.mu.Unlock()
	for _, j := range r.snapshot() {
		<-j.done
	}
	r.mu.Lock()
	for file := range r.leftovers {
		_ = file.Close() // ends its reader
	}
	r.mu.Unlock()
	r.wg.Wait()
	return r.dir.Close()
}

func (r *Runner) snapshot() []*job {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*job, 0, len(r.jobs))
	for _, j := range r.jobs {
		all = append(all, j)
	}
	return all
}

func (r *Runner) job(id string) (*job, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j, ok := r.jobs[id]
	return j, ok
}

// stamp is the moment of the next event: later than any before, whatever the wall clock does. The caller holds mu.
func (r *Runner) stamp() time.Time {
	at := r.options.Now().UTC().Truncate(time.Microsecond)
	if !at.After(r.lastStamp) {
		at = r.lastStamp.Add(time.Microsecond)
	}
	r.lastStamp = at
	return at
}

// retain forgets the oldest finished commands beyond the bounds. The caller holds mu, or is alone.
func (r *Runner) retain() {
	var count, text, disk int64
	var gone []*job
	for _, e := range slices.Backward(r.events) {
		if e.Order >= 0 {
			continue
		}
		count++
		text += int64(len(e.job.spec.Command))
		disk += e.job.output.diskBytes()
		if e.job.finished() && (count > keptCommands || text > r.bounds.text || disk > keptTotal) {
			gone = append(gone, e.job)
		}
	}
	r.forget(gone)
}

// forget removes commands, their events and their files. The caller holds mu, or is alone.
func (r *Runner) forget(gone []*job) {
	if len(gone) == 0 {
		return
	}
	for _, j := range gone {
		delete(r.jobs, j.id)
		if err := r.dir.RemoveAll(j.id); err != nil {
			r.log.Warn("a finished command cannot be removed", "command_id", j.id, "error", err)
		}
	}
	kept := r.events[:0]
	for _, e := range r.events {
		if _, ok := r.jobs[e.job.id]; ok {
			kept = append(kept, e)
		}
	}
	clear(r.events[len(kept):])
	r.events = kept
}

// newID makes an id: 32 hexadecimal digits.
func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

func isID(text string) bool {
	raw, err := hex.DecodeString(text)
	return err == nil && len(raw) == 16
}
