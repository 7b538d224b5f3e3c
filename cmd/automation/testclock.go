//go:build testhooks

package main

import (
	"context"
	"time"

	"automation/loop"
	"automation/models"
	"automation/testhooks"
)

// testClock moves the clock of this process as the file of AUTOMATION_TEST_CLOCK says.
type testClock struct{ *testhooks.Clock }

func openTestClock() (testClock, error) {
	c, err := testhooks.NewClock()
	return testClock{c}, err
}

func (c testClock) options() []models.Option {
	return []models.Option{models.WithHost(c.Host), models.WithShift(c.Rows)}
}

// testClockEvery is how often the file is looked at.
const testClockEvery = 10 * time.Millisecond

// testClockPatience is how long the clock waits for passes to end before it is moved. Leases are renewed in real time: a jump in
// the middle of a pass would end them under their holder.
const testClockPatience = 20 * time.Second

// underTestClock adds the duty that reads the file, moves the clock while no pass runs, and wakes all other duties.
func (a *App) underTestClock(duties []loop.Loop) []loop.Loop {
	for n := range duties {
		if duties[n].Nudge == nil {
			duties[n].Nudge = loop.NewNudge()
		}
	}
	var since time.Time
	idle := func() bool {
		running := 0
		for _, s := range a.duties.Status() {
			running += s.Running
		}
		if since.IsZero() {
			since = time.Now()
		}
		return running <= 1 || time.Since(since) > testClockPatience // one is this pass itself
	}
	return append(duties, loop.Loop{Name: "test clock", Every: testClockEvery, Pass: func(ctx context.Context) (int, error) {
		changed, err := a.testClock.Read(idle)
		if err != nil || !changed {
			return 0, err
		}
		since = time.Time{}
		a.log.InfoContext(ctx, "test clock moved", "shifts", a.testClock.String())
		for _, duty := range duties {
			duty.Nudge.Wake()
		}
		return 1, nil
	}})
}
