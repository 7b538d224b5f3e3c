package watchdog

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/loop"
	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// sickPlace is where the provider is that does not work; the one of place does.
var sickPlace = models.Place{Backend: "sick"}

// outage is a rig with two providers and all duties, in a bubble: its hours take no time, and what is done at once takes none
// of them.
type outage struct {
	*rig
	sick    *sandboxtest.Fake
	breaker *sandbox.Decorated
}

// ailments are the ways in which a provider does not work.
var ailments = map[string]func(f *sandboxtest.Fake, method string){
	"answers 500": func(f *sandboxtest.Fake, m string) { f.FailAlways(m, &sandbox.ProviderError{Status: 500}) },
	"hangs":       func(f *sandboxtest.Fake, m string) { f.Delay(m, 24*time.Hour) },
}

func eachAilment(t *testing.T, test func(o *outage, ail func())) {
	t.Helper()
	for name, ailment := range ailments {
		t.Run(name, func(t *testing.T) {
			eachOutage(t, func(o *outage) {
				test(o, func() {
					for _, method := range []string{"Inspect", "Suspend", "Delete", "List"} {
						ailment(o.sick, method)
					}
				})
			})
		})
	}
}

func eachOutage(t *testing.T, test func(*outage)) {
	t.Helper()
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		agents := sandboxtest.NewAgentServer(t)
		synctest.Test(t, func(t *testing.T) {
			boxes := &http.Client{Transport: deaf{agents.Direct().Transport}}
			o := &outage{rig: rigOf(t, db, sandboxtest.Quirks{}, agents, boxes), sick: sandboxtest.NewFake(sandboxtest.Quirks{})}
			o.settings.Export = sandbox.ExportOff
			o.breaker = sandbox.Decorate(o.sick, sandbox.Limits{})
			healthy := sandbox.Decorate(o.fake, sandbox.Limits{})
			o.Backends = map[models.Place]sandbox.Backend{place: healthy, sickPlace: o.breaker}
			o.SettleNudges[sickPlace], o.StaleNudges[sickPlace] = loop.NewNudge(), loop.NewNudge()
			o.settler = sandbox.NewSettler(sandbox.SettlerConfig{
				Store: o.store, Deployment: o.Deployment, Settings: o.settings, Blobs: o.blobs, HTTP: boxes,
				Backends: map[string]*sandbox.Decorated{place.Backend: healthy, sickPlace.Backend: o.breaker},
				Wake:     func(p models.Place) { o.SettleNudges[p].Wake() },
			})
			o.Settler = o.settler
			test(o)
		})
	})
}

// deaf is the way to all boxes; those of the sick provider take a request and never answer.
type deaf struct{ http.RoundTripper }

func (d deaf) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.URL.Host, "192.0.2.") {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return d.RoundTripper.RoundTrip(r)
}

// serve runs duties until stop.
func (o *outage) serve(duties ...loop.Loop) (stop func()) {
	o.Helper()
	runner, err := loop.New(slog.New(slog.DiscardHandler), duties...)
	require.NoError(o, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { runner.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// at makes the box of a run at one of the providers; due, where given, is when it is to be deleted: its run is over, it is
// suspended, and nothing in it is wanted any more.
func (o *outage) at(p models.Place, due *time.Time) (*models.Run, *models.Sandbox) {
	o.Helper()
	there := *o.rig
	if p == sickPlace {
		there.fake = o.sick
	}
	return there.running(func(r *models.Run, b *models.Sandbox) {
		if b.Backend = p.Backend; due == nil {
			return
		}
		now, code := o.clock.Now(), 0
		there.fake.IdlePause(b.ID)
		r.Status, r.CompletedAt, r.CleanupDueAt, r.OutputAt, r.ExitCode = models.RunCompleted, &now, due, &now, &code
		b.Desired, b.Observed, b.OutputEpoch = models.WantSuspended, models.SeenSuspended, 1
	})
}

// asked counts the calls to the sick provider, but for those that made its boxes.
func (o *outage) asked() int { return len(o.sick.Calls()) - o.sick.Count("Create") }

func TestVolumeAnHourWithoutItsProviderCostsOneCallABreakerIntervalAndNoBox(t *testing.T) {
	const (
		open     = 30 * time.Second // of the breaker
		call     = 30 * time.Second // what a call may take
		parallel = 32 + 1           // calls on their way when it opens: of the settler's workers, and of the orphan duty
	)
	lasts := time.Duration(max(5, modelstest.Volume(60))) * time.Minute
	eachAilment(t, func(o *outage, ail func()) {
		boxes := map[uuid.UUID]*models.Run{}
		for n := range 40 { // half of them become due in the outage
			due := o.clock.Now().Add(time.Duration(max(0, n-20)) * lasts / 20)
			run, box := o.at(sickPlace, &due)
			boxes[box.ID] = run
		}
		ail()
		defer o.serve(o.Janitor(), o.Settle(sickPlace), o.Orphans(sickPlace))()
		time.Sleep(lasts)
		during := o.asked()
		require.LessOrEqual(o, during, parallel+int(lasts/open))
		require.GreaterOrEqual(o, during, int(lasts/(open+call)), "it is seen soon when the provider is back")
		require.Len(o, o.sick.Alive(), len(boxes))

		for _, method := range []string{"Inspect", "Suspend", "Delete", "List"} {
			o.sick.FailAlways(method, nil)
			o.sick.Delay(method, 0)
		}
		calls := map[uuid.UUID]int{}
		for id := range boxes {
			calls[id] = o.sick.CountFor("Delete", id)
		}
		time.Sleep(open + call) // one that hangs is still on its way
		_, probing := o.breaker.ClosedIn()
		require.False(o, probing, "one call shows that it is back")
		require.Less(o, len(o.sick.Alive()), len(boxes))

		time.Sleep(15 * time.Minute) // the longest backoff
		require.Empty(o, o.sick.Alive())
		for id, run := range boxes {
			require.Equal(o, models.SeenDeleted, o.box(id).Observed)
			require.Nil(o, o.box(id).NextStepAt)
			require.Nil(o, o.run(run.ID).CleanupDueAt)
			again := o.sick.CountFor("Delete", id) - calls[id]
			require.LessOrEqual(o, again, 1, "deleted once")
		}
	})
}

func TestNobodyWaitsForTheProviderOfOthers(t *testing.T) {
	const (
		atOnce = 200 * time.Millisecond // a nudge may wait a moment
		sick   = 18                     // more than any duty has workers
	)
	eachAilment(t, func(o *outage, ail func()) {
		overdue, soon := o.clock.Now(), o.clock.Now().Add(40*time.Second)
		for range sick {
			o.at(sickPlace, &overdue)
			ended, _ := o.at(sickPlace, nil)
			o.finish(ended.ID, models.RunCompleted)
			o.at(sickPlace, nil) // its command is asked for its exit again and again
		}
		ail()
		defer o.serve(o.Loops()...)()
		time.Sleep(20 * time.Second)

		_, dueBox := o.at(place, &soon)
		told, toldBox := o.at(place, nil)
		silent, silentBox := o.at(place, nil)
		o.exit(silent, silentBox, "", "it did not work", 1)
		o.exit(told, toldBox, "", "", 0)
		o.JanitorNudge.Wake() // as whoever writes a stamp, starts a command or ends a run does
		o.StaleNudges[place].Wake()
		began := o.clock.Now()
		o.finish(told.ID, models.RunCompleted)
		o.settleSoon()
		time.Sleep(atOnce)
		require.Equal(o, models.SeenSuspended, o.box(toldBox.ID).Observed, "a run that calls back is paused at once")

		time.Sleep(firstBetween + graceFailed)
		run := o.run(silent.ID)
		require.Equal(o, models.RunFailed, run.Status, "a command that ends is noticed as soon as ever")
		require.Less(o, run.CompletedAt.Sub(began), firstBetween+graceFailed+atOnce)

		time.Sleep(soon.Sub(o.clock.Now()) + atOnce)
		require.Equal(o, models.SeenDeleted, o.box(dueBox.ID).Observed, "a box is deleted when it is due")
		require.Len(o, o.sick.Alive(), 3*sick)
	})
}
