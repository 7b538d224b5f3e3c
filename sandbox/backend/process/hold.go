package process

import (
	"context"
	"time"
)

// hold is what keeps the processes of a box together, so that all of them are stopped, continued and ended.
type hold interface {
	// stop makes every process stand still and returns when all do; cont undoes that, also where it was cut short.
	stop(ctx context.Context) error
	cont(ctx context.Context) error
	// stopped reports whether the box counts as stopped.
	stopped() (bool, error)
}

// hold returns what holds the processes of this start.
func (x box) hold(facts start) hold {
	if facts.Cgroup != "" {
		return cgroupHold{dir: facts.Cgroup, id: x.id}
	}
	return treeHold{box: x, facts: facts}
}

// How long the kernel may take. Both end earlier with the caller's context.
const (
	stopPatience = 10 * time.Second
	killPatience = 20 * time.Second
)

// until repeats try, at first at once and then ever slower, until it says done, fails, or ctx ends.
func until(ctx context.Context, try func() (done bool, err error)) error {
	wait := time.Millisecond
	for {
		done, err := try()
		if err != nil || done {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}
