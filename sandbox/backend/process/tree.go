package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"syscall"
)

// What heldFile says: the last order a tree was given. Stopping and continuing many processes is not one step; after a
// crash in the middle the half-done order is shown as not done, so that whoever gave it gives it again.
const (
	heldSuspend = "suspend"
	heldResume  = "resume"
)

// treeHold holds a box by its supervisor: everything below it, and what else carries the box's marker once the supervisor
// is gone. The supervisor itself is never stopped, it must adopt what loses its parent.
type treeHold struct {
	box   box
	facts start
}

// sight is what one look at a box's processes showed.
type sight struct {
	all   map[proc]byte // the state of each, of those that have ended and wait for their parent too
	moved bool          // one went, or changed its parent, while we looked
}

// calm reports whether nothing has happened between two looks.
func (s sight) calm(before sight) bool {
	return !s.moved && !before.moved && maps.Equal(s.all, before.all)
}

// look calls act for everything that runs in the box, at once when it is found: a program that forks and ends all the time
// is never the same process for long. Without its supervisor a tree has fallen apart, and its parts are known by their
// environment.
func (t treeHold) look(act func(status) error) (sight, error) {
	seen := sight{all: map[proc]byte{}}
	if t.facts.Supervisor.alive() {
		err := t.descend(&seen, act)
		if !errors.Is(err, errNoChildren) {
			return seen, err
		}
	}
	all, err := processes()
	if err != nil {
		return seen, err
	}
	found := t.strays(all)
	if t.facts.Supervisor.alive() {
		found = descendants(all, t.facts.Supervisor.PID)
	}
	for _, s := range found {
		seen.all[s.proc] = s.state
		err = errors.Join(err, act(s))
	}
	return seen, err
}

// descend looks at everything below the supervisor, by the lists of children that the kernel keeps: some hundred times
// faster than a walk over all of /proc.
func (t treeHold) descend(seen *sight, act func(status) error) (err error) {
	for next := []int{t.facts.Supervisor.PID}; len(next) > 0; next = next[1:] {
		children, listErr := childrenOf(next[0])
		if errors.Is(listErr, errNoChildren) {
			return listErr
		}
		seen.moved = seen.moved || listErr != nil
		for _, pid := range children {
			s, ok := readStatus(pid)
			if !ok || s.parent != next[0] {
				seen.moved = true
				continue
			}
			seen.all[s.proc] = s.state
			if !s.gone() {
				err = errors.Join(err, act(s))
				next = append(next, pid)
			}
		}
	}
	return err
}

// strays returns those of all that carry the box's marker, but for its supervisor and ourselves.
func (t treeHold) strays(all []status) []status {
	var found []status
	for _, s := range all {
		if s.PID != os.Getpid() && s.proc != t.facts.Supervisor && s.carries(t.box.marker()) {
			found = append(found, s)
		}
	}
	return found
}

// calmLooks is how many looks in a row must show the same: one can miss a process that is born during it, and the next one
// too.
const calmLooks = 4

// signalAll sends a signal to everything that is not yet as it should be, again while new ones appear, until nothing is
// left to signal and nothing happens any more.
func (t treeHold) signalAll(ctx context.Context, signal syscall.Signal, isSo func(status) bool) error {
	told := map[proc]bool{}
	var before sight
	looks := 0
	return until(ctx, func() (bool, error) {
		for fresh := true; fresh && ctx.Err() == nil; { // what is new may be gone before a pause ends
			fresh = false
			looks++
			seen, err := t.look(func(s status) error {
				if isSo(s) {
					return nil
				}
				looks, fresh, told[s.proc] = 0, fresh || !told[s.proc], true
				return s.signal(signal)
			})
			if err != nil {
				return false, err
			}
			if !seen.calm(before) {
				looks = 0
			}
			before = seen
		}
		return looks >= calmLooks, nil
	})
}

func (t treeHold) stop(ctx context.Context) error {
	if err := writeFile(t.box.control(heldFile), []byte(heldSuspend)); err != nil {
		return err
	}
	return t.freeze(ctx)
}

// freeze stops everything.
func (t treeHold) freeze(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopPatience, errors.New("processes of the box do not stop"))
	defer cancel()
	return t.signalAll(ctx, syscall.SIGSTOP, status.stopped)
}

func (t treeHold) cont(ctx context.Context) error {
	if !t.box.has(heldFile) {
		return nil // what stands still was not stopped by us
	}
	if err := writeFile(t.box.control(heldFile), []byte(heldResume)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	told := map[proc]bool{} // once each: a program may stop itself again, that is its own affair
	looks := 0
	err := until(ctx, func() (bool, error) {
		looks++
		_, err := t.look(func(s status) error {
			if !s.stopped() || told[s.proc] {
				return nil
			}
			looks, told[s.proc] = 0, true
			return s.signal(syscall.SIGCONT)
		})
		return looks >= calmLooks, err
	})
	if err != nil {
		return err
	}
	if err := os.Remove(t.box.control(heldFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("continue box: %w", err)
	}
	return nil
}

func (t treeHold) stopped() (bool, error) {
	text, err := os.ReadFile(t.box.control(heldFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // never told to stop; what stands still in it does so by itself
	}
	if err != nil {
		return false, fmt.Errorf("look at box: %w", err)
	}
	all := true
	seen, err := t.look(func(s status) error {
		all = all && s.stopped()
		return nil
	})
	if err != nil {
		return false, err
	}
	if !all || seen.moved { // half done: shown as what the order was to change
		return string(text) == heldResume, nil
	}
	return true, nil
}

// kill ends everything of the box: first what the supervisor holds, so that what loses its parent falls to it and not out
// of the tree, then the supervisor, then what carries the marker.
func (t treeHold) kill(ctx context.Context) error {
	if t.facts.Supervisor.alive() {
		// Standing still it cannot outrun us; whether it does is not decisive.
		if err := t.freeze(ctx); err != nil && ctx.Err() != nil {
			return err
		}
		if err := t.killAll(ctx); err != nil {
			return err
		}
		if err := t.facts.Supervisor.signal(syscall.SIGKILL); err != nil {
			return err
		}
	}
	err := until(ctx, func() (bool, error) {
		t.facts.Supervisor.reap()
		return !t.facts.Supervisor.alive(), nil
	})
	if err != nil {
		return err
	}
	return t.killAll(ctx)
}

// killAll ends everything but the supervisor.
func (t treeHold) killAll(ctx context.Context) error {
	return t.signalAll(ctx, syscall.SIGKILL, func(status) bool { return false })
}
