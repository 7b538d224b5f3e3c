package loop_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"automation/loop"
)

func TestALoopSaysWhatIsWrongWithIt(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, c := range map[string]struct {
		status loop.Status
		want   string
	}{
		"not begun":                         {loop.Status{Every: time.Second}, "not begun"},
		"just begun":                        {loop.Status{Every: time.Second, Began: ago(time.Minute)}, ""},
		"never a success":                   {loop.Status{Every: time.Second, Began: ago(3 * time.Minute)}, "stalled"},
		"fresh":                             {loop.Status{Every: time.Second, Began: ago(time.Hour), LastSuccess: ago(time.Minute)}, ""},
		"old":                               {loop.Status{Every: time.Second, Began: ago(time.Hour), LastSuccess: ago(121 * time.Second)}, "stalled"},
		"within five intervals":             {loop.Status{Every: time.Minute, Began: ago(time.Hour), LastSuccess: ago(299 * time.Second)}, ""},
		"past five intervals":               {loop.Status{Every: time.Minute, Began: ago(time.Hour), LastSuccess: ago(301 * time.Second)}, "stalled"},
		"every worker in a long pass":       {loop.Status{Every: time.Second, Began: ago(time.Hour), LastSuccess: ago(time.Hour / 2), Busy: true}, ""},
		"one failure after a success":       {loop.Status{Every: time.Second, Began: ago(time.Hour), LastSuccess: now, FailuresInRow: 1}, ""},
		"failures in a row":                 {loop.Status{Every: time.Second, Began: ago(time.Hour), LastSuccess: now, FailuresInRow: 3}, "failing"},
		"failures in a row, the rest busy.": {loop.Status{Every: time.Second, Began: now, FailuresInRow: 4, Busy: true}, "failing"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, c.status.Problem(now)) })
	}
}

func TestAHungPassIsSeenAndALongOneIsNot(t *testing.T) {
	for name, c := range map[string]struct {
		timeout time.Duration
		want    string
	}{
		"bounded by the loop": {0, "stalled"},
		"bounds itself":       {loop.Unbounded, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				runner, stop := start(t, loop.Loop{Name: "x", Every: time.Second, Timeout: c.timeout, Pass: func(context.Context) (int, error) {
					<-release
					return 0, nil
				}})
				<-time.After(10 * time.Minute)
				require.Equal(t, c.want, runner.Status()[0].Problem(time.Now()))
				close(release)
				synctest.Wait()
				require.Empty(t, runner.Status()[0].Problem(time.Now()))
				stop()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		runner, stop := start(t, loop.Loop{Name: "x", Every: time.Minute, Pass: func(context.Context) (int, error) { return 0, errors.New("away") }})
		<-time.After(time.Minute)
		require.Equal(t, "failing", runner.Status()[0].Problem(time.Now()))
		stop()
	})
}
