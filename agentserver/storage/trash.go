package storage

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// trashName is the directory in the root that things are moved into before they are deleted: on the same file system, so
// that the move is one rename.
const trashName = ".agent-server-trash"

// Parallel deletion: workers, and how many names are taken up at a time.
const (
	trashWorkers = 4
	trashBatch   = 1024
)

// What cannot be deleted is tried again after these times, each twice the one before.
const (
	retryFirst   = time.Minute
	retryLongest = 24 * time.Hour
)

// trash deletes what was moved into it, in the background. What a server leaves there is deleted by the next one.
type trash struct {
	root handle
	log  *slog.Logger
	now  func() time.Time

	mu       sync.Mutex
	draining chan struct{}    // closed when the deletion that runs is through; nil when none runs
	again    bool             // something was added since it began
	held     map[string]bool  // names that are not to be deleted: not yet looked at
	failed   map[string]Stuck // names that could not be deleted, said once; tried again when their time has come
	stop     context.CancelFunc
	ctx      context.Context
}

func newTrash(root handle, log *slog.Logger, now func() time.Time) *trash {
	t := &trash{root: root, log: log, now: now, held: map[string]bool{}, failed: map[string]Stuck{}}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// open opens the directory, and makes it when create is set. fs.ErrNotExist: there is none.
func (t *trash) open(create bool) (handle, error) {
	if create {
		if err := t.root.mkdir(trashName); err != nil && !errors.Is(err, fs.ErrExist) {
			return handle{}, fmt.Errorf("make the trash: %w", err)
		}
	}
	dir, err := t.root.open(trashName)
	if err != nil {
		return handle{}, fmt.Errorf("trash: %w", err)
	}
	return dir, nil
}

// newName is a name that is not in the trash.
func newName() string {
	var bytes [12]byte
	_, _ = rand.Read(bytes[:]) // never fails
	return hex.EncodeToString(bytes[:])
}

// empty starts the deletion, unless it runs already.
func (t *trash) empty() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.again = true
	if t.draining != nil || t.ctx.Err() != nil {
		return
	}
	done := make(chan struct{})
	t.draining = done
	go func() {
		defer close(done)
		t.drain()
	}()
}

// wait waits until nothing is being deleted, or ctx ends.
func (t *trash) wait(ctx context.Context) {
	t.mu.Lock()
	done := t.draining
	t.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// close ends the deletion and waits for it.
func (t *trash) close() {
	t.stop()
	t.wait(context.Background())
}

// drain deletes until the trash holds only what cannot be deleted.
func (t *trash) drain() {
	for {
		t.mu.Lock()
		if !t.again || t.ctx.Err() != nil {
			t.draining = nil
			t.mu.Unlock()
			return
		}
		t.again = false
		t.mu.Unlock()
		dir, err := t.open(false)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.log.Warn("trash cannot be emptied", "error", err)
			continue
		}
		for t.batch(dir) {
		}
		dir.close()
	}
}

// batch deletes some entries, in parallel, and reports whether there may be more.
func (t *trash) batch(dir handle) bool {
	names, err := t.pending(dir)
	if err != nil {
		t.log.Warn("trash cannot be read", "error", err)
		return false
	}
	d := deletion{ctx: t.ctx, dir: dir, free: make(chan struct{}, trashWorkers-1)}
	var entries sync.WaitGroup
	for _, name := range names {
		d.share(&entries, func() { t.delete(&d, name) })
	}
	entries.Wait()
	return len(names) > 0 && t.ctx.Err() == nil
}

// pending names entries that are still to be tried.
func (t *trash) pending(dir handle) ([]string, error) {
	fresh, err := dir.open(".") // reads from the start
	if err != nil {
		return nil, err
	}
	defer fresh.close()
	var names []string
	for len(names) == 0 {
		some, err := fresh.names(trashBatch)
		t.mu.Lock()
		for _, name := range some {
			if !t.held[name] && !t.now().Before(t.failed[name].RetryAt) {
				names = append(names, name)
			}
		}
		t.mu.Unlock()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

// delete removes one entry. What cannot be removed is left where it is, said once, and keeps nothing else.
func (t *trash) delete(d *deletion, name string) {
	if isArchived(name) { // from here on it is not whole any more
		plain := newName()
		if d.dir.move(name, d.dir, plain) != nil {
			return // taken back
		}
		name = plain
	}
	err := d.remove(d.dir.fd(), name, 0)
	if t.ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	tries := t.failed[name].Tries
	if err == nil {
		delete(t.failed, name)
	} else {
		wait := min(retryFirst<<min(tries, 20), retryLongest)
		t.failed[name] = Stuck{Path: name, Error: reasonFor(err), Tries: tries + 1, RetryAt: t.now().Add(wait)}
	}
	t.mu.Unlock()
	if err != nil && tries == 0 {
		t.log.Warn("not deletable, left in the trash", "entry", name, "error", err)
	}
}

// stuck lists what cannot be deleted, by its path as it is shown beneath root.
func (t *trash) stuck(root string) []Stuck {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.failed) == 0 {
		return nil
	}
	dir, err := t.open(false)
	if err != nil {
		return nil
	}
	defer dir.close()
	all := make([]Stuck, 0, len(t.failed))
	for name, entry := range t.failed {
		if _, err := dir.stat(name); errors.Is(err, fs.ErrNotExist) {
			delete(t.failed, name) // somebody else took it away
			continue
		}
		entry.Path = shown(root, filepath.Join(t.root.file.Name(), trashName, entry.Path))
		all = append(all, entry)
	}
	slices.SortFunc(all, func(a, b Stuck) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// size is what the trash still takes on disk, in bytes.
func (t *trash) size(ctx context.Context) (int64, error) {
	dir, err := t.root.stat(trashName)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	all := newTally(identity{}, false)
	w := walker{ctx: ctx, free: make(chan struct{}, walkers)}
	err = w.from(t.root, trashName, nil, all)
	return max(0, all.all.bytes-allocated(dir)) + linkCounter{}.take(all.links), err // the directory itself stays
}

// hold leaves an entry alone.
func (t *trash) hold(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[name] = true
}

// release gives an entry to the deletion.
func (t *trash) release(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.held, name)
}
