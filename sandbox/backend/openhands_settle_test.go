package backend

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/tests/cloudstub"
)

// settled is the settler over one box at OpenHands Cloud, with a clock that the test moves.
type settled struct {
	*testing.T
	*cloud
	store   *models.Store
	rows    *modelstest.Clock
	settler *sandbox.Settler
	place   models.Place // of this one alone, so that tests can share a database
	run     *models.Run
	box     uuid.UUID
}

func newSettled(t *testing.T) *settled { return newSettledOn(t, modelstest.NewSQLite(t)) }

func newSettledOn(t *testing.T, db *modelstest.DB) *settled {
	clock := modelstest.NewClock()
	s := db.Open(t, models.WithClock(clock.Now))
	c := newCloud(t, nil)
	ref := c.box(t)
	place := models.Place{Backend: openhandsName, Location: uuid.NewString()}
	a := modelstest.Automation(t, s, func(a *models.Automation) { a.OrgID, a.UserID = c.owner.OrgID, c.owner.UserID })
	run, box := modelstest.Running(t, s, a, func(_ *models.Run, b *models.Sandbox) {
		b.Backend, b.Location, b.Identities[0].ProviderID = openhandsName, place.Location, idOf(ref)
	})
	deployment, err := s.Deployment(t.Context())
	require.NoError(t, err)
	return &settled{
		T: t, cloud: c, store: s, rows: clock, run: run, box: box.ID, place: place,
		settler: sandbox.NewSettler(sandbox.SettlerConfig{
			Store: s, Deployment: deployment, Settings: sandbox.Settings{CleanupDelay: time.Hour},
			Timing:   sandbox.Timing{Call: 50 * time.Millisecond, Shows: 20 * time.Millisecond, Poll: 10 * time.Millisecond},
			Backends: map[string]*sandbox.Decorated{openhandsName: sandbox.Decorate(c.openhands, sandbox.Limits{PerSecond: 10000, Burst: 1000, Failures: 1000})},
		}),
	}
}

// finish ends the run as its callback does; its box is to be kept for an hour.
func (s *settled) finish() {
	_, err := s.store.Finish(s.Context(), s.run.ID, models.Outcome{Status: models.RunCompleted, Actor: "callback", Reason: "callback"},
		func(e models.Ending) models.Decision {
			return sandbox.Disposition(e, sandbox.Settings{CleanupDelay: time.Hour}, openhandsCan)
		})
	require.NoError(s, err)
}

// settleFor lets d pass; whatever falls due is done.
func (s *settled) settleFor(d time.Duration) {
	for end := s.rows.Now().Add(d); ; {
		for n := 1; n > 0; {
			var err error
			n, err = s.settler.Pass(s.Context(), s.place)
			require.NoError(s, err)
		}
		next, err := s.settler.NextAt(s.Context(), s.place)
		require.NoError(s, err)
		if next == nil || next.After(end) {
			s.rows.Advance(end.Sub(s.rows.Now()))
			return
		}
		s.rows.Advance(max(next.Sub(s.rows.Now()), time.Millisecond))
		s.clock.Advance(max(next.Sub(s.rows.Now()), time.Second))
	}
}

func (s *settled) row() *models.Sandbox {
	b, err := s.store.Sandbox(s.Context(), uuid.Nil, s.box)
	require.NoError(s, err)
	return b
}

// Every fault on every call, on both databases; under the race detector a few of them.
func TestNoFaultOfAProviderLosesABoxDeletesItEarlyOrMakesAStormVolume(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		for _, f := range faults {
			if modelstest.Volume(100) < 100 && !slices.Contains([]string{"401", "404", "hang"}, f.name) {
				continue
			}
			for _, op := range []string{"get", "pause", "resume", "delete", "mint"} {
				t.Run(op+" "+f.name, func(t *testing.T) {
					t.Parallel()
					if db.Dialect == models.SQLite { // one process owns a file
						newSettled(t).survives(op, f.fault)
						return
					}
					newSettledOn(t, db).survives(op, f.fault)
				})
			}
		}
	})
}

// survives takes the box of a finished run through its pause, a resume by hand and its deletion while a call fails.
func (s *settled) survives(op string, fault cloudstub.Fault) {
	if op == "mint" {
		s.stub.Revoke(cloudstub.Alice)
	}
	before := len(s.stub.Calls(op))
	s.stub.FailAlways(op, fault)
	s.finish()
	s.settleFor(25 * time.Minute)
	require.NoError(s, s.store.Order(s.Context(), s.box, models.WantRunning, "user:u", "resumed by hand"))
	s.settleFor(25 * time.Minute)
	require.Len(s, s.stub.Alive(), 1, "before it is due it is not deleted")
	require.Empty(s, s.stub.Calls("delete"))
	if op == "resume" && s.row().Observed != models.SeenRunning {
		s.tells()
	}

	require.NoError(s, s.store.Order(s.Context(), s.box, models.WantDeleted, "janitor", "due"))
	s.settleFor(time.Hour)
	if row := s.row(); row.Observed == models.SeenDeleted {
		require.Empty(s, s.stub.Alive(), "deleted is only what is gone")
	} else {
		s.tells()
		require.NotEmpty(s, row.NeedsAttention)
	}
	require.Less(s, len(s.stub.Calls(op))-before, 80, "no storm in two hours")

	s.stub.Heal()
	s.settleFor(time.Hour)
	require.Empty(s, s.stub.Alive(), "nothing leaks")
	require.Equal(s, models.SeenDeleted, s.row().Observed)
}

// tells: what is shown of the box says what is wrong.
func (s *settled) tells() {
	row := s.row()
	require.NotNil(s, row.LastError, "the reason is shown")
	require.NotEmpty(s, *row.LastError)
}

func TestS1_035_S1_050_AProviderThatWasFirstIsFine(t *testing.T) {
	s := newSettled(t)
	s.finish()
	s.settleFor(time.Minute)
	b, _ := s.stub.Box(s.stub.Alive()[0])
	require.Equal(t, "PAUSED", b.Status)
	s.stub.Vanish(b.ID) // the provider's own expiry
	require.NoError(t, s.store.Order(t.Context(), s.box, models.WantDeleted, "janitor", "due"))
	s.settleFor(time.Minute)
	require.Equal(t, models.SeenDeleted, s.row().Observed)
	run, err := s.store.Run(t.Context(), uuid.Nil, s.run.ID)
	require.NoError(t, err)
	require.Nil(t, run.CleanupDueAt, "the 404 clears the stamp")
}

func TestAUserWhoLeftNeedsAttentionAndTheirBoxIsNotForgotten(t *testing.T) {
	s := newSettled(t)
	s.finish()
	s.settleFor(time.Minute)
	s.stub.Leave(cloudstub.Alice)
	require.NoError(t, s.store.Order(t.Context(), s.box, models.WantDeleted, "janitor", "due"))
	s.settleFor(3 * time.Hour)
	row := s.row()
	require.Equal(t, sandbox.AttentionRefused, row.NeedsAttention)
	require.NotNil(t, row.NextStepAt)
	require.Less(t, len(s.stub.Calls("mint")), 20, "long waits")
	require.Len(t, s.stub.Alive(), 1)
}

func TestS1_051_ABoxResumedAtTheWebUIIsAdoptedWithItsNewKey(t *testing.T) {
	s := newSettled(t)
	s.finish()
	s.settleFor(time.Minute)
	id := s.stub.Alive()[0]
	require.Equal(t, models.SeenSuspended, s.row().Observed)
	old := s.row().SessionKey
	s.stub.Set(id, "RUNNING")
	require.NoError(t, s.store.Order(t.Context(), s.box, models.WantRunning, "user:u", "resumed by hand"))
	s.settleFor(time.Minute)
	row := s.row()
	require.Equal(t, models.SeenRunning, row.Observed)
	require.Equal(t, models.WantRunning, row.Desired)
	now, _ := s.stub.Box(id)
	require.Equal(t, now.Key, row.SessionKey)
	require.NotEqual(t, old, row.SessionKey)
}
