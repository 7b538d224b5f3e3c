package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// members returns what runs in the box. Without its supervisor a tree has fallen apart, and its parts are known by their
// environment.
func (t treeHold) members() ([]status, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	if t.facts.Supervisor.alive() {
		return descendants(all, t.facts.Supervisor.PID), nil
	}
	return t.strays(all), nil
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

// settled makes a condition count only when it was seen twice in a row: one walk over /proc can miss a process that is born
// during it, but not also in the next one, when all it was born from stands still.
func settled(try func() (done bool, err error)) func() (bool, error) {
	seen := 0
	return func() (bool, error) {
		done, err := try()
		if seen++; !done {
			seen = 0
		}
		return seen >= 2, err
	}
}

func (t treeHold) stop(ctx context.Context) error {
	if err := writeFile(t.box.control(heldFile), []byte(heldSuspend)); err != nil {
		return err
	}
	return t.freeze(ctx)
}

// freeze stops every member, again while new ones appear.
func (t treeHold) freeze(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopPatience, errors.New("processes of the box do not stop"))
	defer cancel()
	return until(ctx, settled(func() (bool, error) {
		members, err := t.members()
		if err != nil {
			return false, err
		}
		done := true
		for _, m := range members {
			if !m.stopped() {
				done = false
				err = errors.Join(err, m.signal(syscall.SIGSTOP))
			}
		}
		return done, err
	}))
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
	err := until(ctx, settled(func() (bool, error) {
		members, err := t.members()
		if err != nil {
			return false, err
		}
		done := true
		for _, m := range members {
			if !told[m.proc] {
				told[m.proc], done = true, false
				err = errors.Join(err, m.signal(syscall.SIGCONT))
			}
		}
		return done, err
	}))
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
	members, err := t.members()
	if err != nil {
		return false, err
	}
	for _, m := range members {
		if !m.stopped() {
			return string(text) == heldResume, nil // half done: shown as what the order was to change
		}
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
		if err := t.killDescendants(ctx); err != nil {
			return err
		}
		if err := t.facts.Supervisor.signal(syscall.SIGKILL); err != nil {
			return err
		}
	}
	return until(ctx, settled(func() (bool, error) {
		t.facts.Supervisor.reap()
		if t.facts.Supervisor.alive() {
			return false, nil
		}
		all, err := processes()
		if err != nil {
			return false, err
		}
		return killEach(t.strays(all))
	}))
}

// killDescendants ends what is below the supervisor, again while new ones appear.
func (t treeHold) killDescendants(ctx context.Context) error {
	return until(ctx, settled(func() (bool, error) {
		all, err := processes()
		if err != nil || !t.facts.Supervisor.alive() {
			return err == nil, err
		}
		return killEach(descendants(all, t.facts.Supervisor.PID))
	}))
}

// killEach ends what it is given; done when that was nothing.
func killEach(found []status) (done bool, err error) {
	for _, s := range found {
		err = errors.Join(err, s.signal(syscall.SIGKILL))
	}
	return len(found) == 0, err
}
