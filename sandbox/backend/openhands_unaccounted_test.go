package backend

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/tests/cloudstub"
)

// lose makes the row of a create that was sent and whose answer never came, of alice's and ordered deleted.
func (s *settled) lose(sent time.Time, change ...func(*models.Sandbox)) {
	b := modelstest.NewBox(s.store)
	ended := sent.Add(20 * time.Second)
	b.OrgID, b.UserID, b.Backend, b.Location = s.owner.OrgID, s.owner.UserID, openhandsName, s.place.Location
	b.Observed, b.ObservedAt, b.AwakeEpoch, b.Identities = models.SeenProvisioning, nil, 0, nil
	b.CreateSentAt, b.CreateEndedAt = &sent, &ended
	for _, c := range change {
		c(b)
	}
	modelstest.Box(s.T, s.store, b)
	require.NoError(s, s.store.Order(s.Context(), b.ID, models.WantDeleted, "dispatch", "the attempt failed"))
	s.box = b.ID
}

// later is an hour after the create of the box that the rig has.
func (s *settled) later() time.Time {
	s.rows.Advance(time.Hour)
	return s.rows.Now()
}

// told returns what the last event about an unaccounted create says, with its candidates.
func (s *settled) told() (reason string, candidates []sandbox.Candidate) {
	events, _, err := s.store.Events(s.Context(), s.box, 100, 0)
	require.NoError(s, err)
	for _, e := range events {
		if e.What != "unaccounted" {
			continue
		}
		var detail struct{ Candidates []sandbox.Candidate }
		require.NoError(s, json.Unmarshal(e.Detail, &detail))
		reason, candidates = e.Reason, detail.Candidates
	}
	return reason, candidates
}

func TestTheOnlyBoxThatALostCreateCanHaveMadeIsDeleted(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		s := newSettledOn(t, db)
		sent := s.later()
		made := s.stub.Plant(cloudstub.Alice, sent.Add(3*time.Second), 0)
		s.stub.Plant(cloudstub.Alice, sent.Add(5*time.Second), 1)                                 // a person's conversation
		older := s.stub.Plant(cloudstub.Alice, sent.Add(-time.Hour), 0)                           // not in its time
		foreign := s.stub.Plant("0b000000-0000-4000-8000-000000000002", sent.Add(time.Second), 0) // not alice's
		alive := len(s.stub.Alive())
		s.lose(sent)

		s.settleFor(9 * time.Minute)
		require.Equal(t, sandbox.AttentionUnaccounted, s.row().NeedsAttention, "shown at once")
		require.Empty(t, s.stub.Calls("search"), "not looked for before ten minutes")

		s.settleFor(5 * time.Minute)
		row := s.row()
		require.Equal(t, models.SeenDeleted, row.Observed)
		require.Empty(t, row.NeedsAttention)
		require.Equal(t, made, row.Identities[0].ProviderID)
		require.Len(t, s.stub.Alive(), alive-1)
		require.Subset(t, s.stub.Alive(), []string{older, foreign})
	})
}

func TestWhatALostCreateMadeIsShownAndNotDeletedWhereItCannotBeTold(t *testing.T) {
	for name, c := range map[string]struct {
		around     func(s *settled, sent time.Time)
		why        string
		candidates int
	}{
		"none": {func(*settled, time.Time) {}, "no box of its user", 0},
		"two": {func(s *settled, at time.Time) {
			s.stub.Plant(cloudstub.Alice, at, 0)
			s.stub.Plant(cloudstub.Alice, at, 0)
		}, "not exactly one", 2},
		"one, used":          {func(s *settled, at time.Time) { s.stub.Plant(cloudstub.Alice, at, 3) }, "not exactly one", 1},
		"one with a command": {func(s *settled, at time.Time) { s.stub.Run(s.stub.Plant(cloudstub.Alice, at, 0), "ls") }, "not exactly one", 1},
		"one that is paused": {func(s *settled, at time.Time) { s.stub.Set(s.stub.Plant(cloudstub.Alice, at, 0), "PAUSED") }, "not exactly one", 1},
		"one, other cannot be": {func(s *settled, at time.Time) {
			s.stub.Plant(cloudstub.Alice, at, 0)
			s.stub.Set(s.stub.Plant(cloudstub.Alice, at, 0), "STOPPING")
		}, "not exactly one", 2},
		"another create at that time": {func(s *settled, at time.Time) {
			s.stub.Plant(cloudstub.Alice, at, 0)
			s.lose(at.Add(25*time.Second), func(b *models.Sandbox) { b.Searches = 1 })
		}, "another create", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSettled(t)
			sent := s.later()
			c.around(s, sent.Add(time.Second))
			s.lose(sent)
			before := len(s.stub.Alive())
			s.settleFor(24 * time.Hour)
			row := s.row()
			require.Equal(t, models.SeenMissing, row.Observed)
			require.Equal(t, sandbox.AttentionUnaccounted, row.NeedsAttention)
			require.Nil(t, row.NextStepAt, "looked for once")
			require.Empty(t, s.stub.Calls("delete"))
			require.Len(t, s.stub.Alive(), before)
			why, candidates := s.told()
			require.Contains(t, why, c.why)
			require.Len(t, candidates, c.candidates)
		})
	}
}

func TestACreateWhoseCallerDiedIsUnaccountedForFromThenOn(t *testing.T) {
	s := newSettled(t)
	sent := s.later()
	s.lose(sent, func(b *models.Sandbox) { b.CreateEndedAt = nil })
	s.stub.Plant(cloudstub.Alice, sent.Add(time.Second), 0)
	s.rows.Advance(time.Minute) // the lease's end
	s.settleFor(15 * time.Minute)
	require.Equal(t, models.SeenDeleted, s.row().Observed)
}

func TestASearchForCandidatesThatFailsIsRepeated(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := newSettled(t)
			sent := s.later()
			made := s.stub.Plant(cloudstub.Alice, sent, 0)
			s.lose(sent)
			s.stub.FailAlways("search", f.fault)
			s.settleFor(2 * time.Hour)
			require.NotEqual(t, models.SeenDeleted, s.row().Observed)
			require.Contains(t, s.stub.Alive(), made)
			require.NotEmpty(t, s.row().NeedsAttention)
			require.NotNil(t, s.row().LastError)
			require.Less(t, len(s.stub.Calls("search")), 40, "no storm")
			s.stub.Heal()
			s.settleFor(time.Hour)
			require.Equal(t, models.SeenDeleted, s.row().Observed)
			require.NotContains(t, s.stub.Alive(), made)
		})
	}
}

func TestAListIsOfOneUsersBoxesAndOfAllPages(t *testing.T) {
	c := newCloud(t, nil)
	for range 250 {
		c.stub.Plant(cloudstub.Alice, time.Now(), 0)
	}
	c.stub.Plant("0b000000-0000-4000-8000-000000000002", time.Now(), 0)
	listed := map[string]bool{}
	for obs, err := range c.List(t.Context(), sandbox.Label{Owner: c.owner}) {
		require.NoError(t, err)
		require.NotNil(t, obs.CreatedAt)
		listed[obs.Identity.ProviderID] = true
	}
	require.Len(t, listed, 250)
	require.Len(t, c.stub.Calls("search"), 3)

	for _, err := range c.List(t.Context(), sandbox.Label{Deployment: uuid.New()}) {
		require.ErrorIs(t, err, errors.ErrUnsupported, "the orphan pass takes nothing of a user's for ours")
	}
}

func TestAListWhosePagesDoNotEndIsNoList(t *testing.T) {
	c := newCloud(t, nil)
	c.stub.FailAlways("search", cloudstub.Fault{Body: `{"items":[],"next_page_id":"0"}`})
	var last error
	for _, err := range c.List(t.Context(), sandbox.Label{Owner: c.owner}) {
		last = err
	}
	require.ErrorContains(t, last, "do not end")
	require.Len(t, c.stub.Calls("search"), 2)
	require.Contains(t, c.stub.Calls("search")[1].URL, "page_id=0")
}
