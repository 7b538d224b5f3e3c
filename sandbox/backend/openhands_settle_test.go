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
	run     *models.Run
	box     uuid.UUID
}

var cloudPlace = models.Place{Backend: openhandsName}

func newSettled(t *testing.T) *settled {
	clock := modelstest.NewClock()
	s := modelstest.NewSQLite(t).Open(t, models.WithClock(clock.Now))
	c := newCloud(t, s)
	ref := c.box(t)
	a := modelstest.Automation(t, s, func(a *models.Automation) { a.OrgID, a.UserID = c.owner.OrgID, c.owner.UserID })
	run, box := modelstest.Running(t, s, a, func(_ *models.Run, b *models.Sandbox) {
		b.Backend, b.Identities[0].ProviderID = openhandsName, idOf(ref)
	})
	deployment, err := s.Deployment(t.Context())
	require.NoError(t, err)
	return &settled{
		T: t, cloud: c, store: s, rows: clock, run: run, box: box.ID,
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
			n, err = s.settler.Pass(s.Context(), cloudPlace)
			require.NoError(s, err)
		}
		next, err := s.settler.NextAt(s.Context(), cloudPlace)
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

func TestNoFaultOfAProviderLosesABoxDeletesItEarlyOrMakesAStorm(t *testing.T) {
	for _, f := range faults {
		switch f.name {
		case "403", "422", "429, Retry-After 0", "429, Retry-After garbage", "slow body":
			continue // to the settler they are like others; each call is held by itself above
		}
		ops := []string{"get", "delete"}
		if slices.Contains([]string{"401", "404", "409", "429, Retry-After 1000000000", "500", "hang"}, f.name) {
			ops = append(ops, "pause", "mint")
		}
		for _, op := range ops {
			t.Run(op+" "+f.name, func(t *testing.T) {
				t.Parallel()
				s := newSettled(t)
				if op == "mint" {
					s.stub.Revoke(cloudstub.Alice)
				}
				before := len(s.stub.Calls(op))
				s.stub.FailAlways(op, f.fault)
				s.finish()
				s.settleFor(50 * time.Minute)
				require.Len(t, s.stub.Alive(), 1, "before it is due it is not deleted")
				require.Empty(t, s.stub.Calls("delete"))

				require.NoError(t, s.store.Order(t.Context(), s.box, models.WantDeleted, "janitor", "due"))
				s.settleFor(time.Hour)
				if op != "pause" {
					if row := s.row(); row.Observed != models.SeenDeleted {
						require.NotNil(t, row.LastError, "the reason is shown")
						require.NotEmpty(t, *row.LastError)
						require.NotEmpty(t, row.NeedsAttention)
					} else {
						require.Empty(t, s.stub.Alive(), "deleted is only what is gone")
					}
				}
				require.Less(t, len(s.stub.Calls(op))-before, 60, "no storm in two hours")

				s.stub.Heal()
				s.settleFor(time.Hour)
				require.Empty(t, s.stub.Alive(), "nothing leaks")
				require.Equal(t, models.SeenDeleted, s.row().Observed)
			})
		}
	}
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
