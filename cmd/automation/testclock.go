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

// watched adds the duty that reads the file and wakes all others when it has changed.
func (c testClock) watched(duties []loop.Loop) []loop.Loop {
	for n := range duties {
		if duties[n].Nudge == nil {
			duties[n].Nudge = loop.NewNudge()
		}
	}
	return append(duties, loop.Loop{Name: "test clock", Every: testClockEvery, Pass: func(context.Context) (int, error) {
		changed, err := c.Read()
		if err != nil || !changed {
			return 0, err
		}
		for _, duty := range duties {
			duty.Nudge.Wake()
		}
		return 1, nil
	}})
}
