package customer_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/customer"
	"automation/models/modelstest"
)

// each runs test on both dialects, with two handles as two replicas have and a session that is queued.
func each(t *testing.T, test func(t *testing.T, clock *modelstest.Clock, one, two *customer.Store, queued *customer.Session)) {
	t.Helper()
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		clock := modelstest.NewClock()
		store := db.Open(t, models.WithClock(clock.Now))
		second := store
		if db.Dialect == models.Postgres {
			second = db.Open(t, models.WithClock(clock.Now))
		}
		box := modelstest.Box(t, store, modelstest.NewBox(store))
		one := customer.New(store)
		queued, err := one.StartSession(t.Context(), box.OrgID, box.ID, "key:test")
		require.NoError(t, err)
		test(t, clock, one, customer.New(second), queued)
	})
}

var places = []models.Place{{Backend: modelstest.Backend}}

func TestS2_008_ATicketIsForOneSandboxOnceWithinAMinute(t *testing.T) {
	each(t, func(t *testing.T, clock *modelstest.Clock, one, two *customer.Store, queued *customer.Session) {
		issue := func() string {
			secret, expires, err := one.IssueTicket(t.Context(), queued, "key:test")
			require.NoError(t, err)
			require.Equal(t, clock.Now().Add(time.Minute), expires)
			return secret
		}
		use := func(s *customer.Store, secret string, org, sandbox uuid.UUID) error {
			_, _, err := s.UseTicket(t.Context(), secret, org, sandbox)
			return err
		}
		secret := issue()
		require.ErrorIs(t, use(one, secret, uuid.New(), queued.SandboxID), customer.ErrTicket)
		require.ErrorIs(t, use(one, secret, queued.OrgID, uuid.New()), customer.ErrTicket)
		require.ErrorIs(t, use(one, secret+"x", queued.OrgID, queued.SandboxID), customer.ErrTicket)
		var won, lost sync.Map
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				if err := use([]*customer.Store{one, two}[i%2], secret, queued.OrgID, queued.SandboxID); err == nil {
					won.Store(i, true)
				} else {
					lost.Store(i, err)
				}
			})
		}
		all.Wait()
		winners := 0
		won.Range(func(any, any) bool { winners++; return true })
		lost.Range(func(_, err any) bool { require.ErrorIs(t, err.(error), customer.ErrTicket); return true })
		require.Equal(t, 1, winners)
		late := issue()
		clock.Advance(time.Minute)
		require.ErrorIs(t, use(one, late, queued.OrgID, queued.SandboxID), customer.ErrTicket)
	})
}

func TestASessionIsCollectedByOneAtATime(t *testing.T) {
	each(t, func(t *testing.T, clock *modelstest.Clock, one, two *customer.Store, queued *customer.Session) {
		first, second := uuid.New(), uuid.New()
		until := func() time.Time { return clock.Now().Add(15 * time.Second) }
		got, err := one.ClaimSessions(t.Context(), []models.Place{{Backend: modelstest.Backend, Location: "elsewhere"}}, first, until(), 16)
		require.NoError(t, err)
		require.Empty(t, got, "boxes of other places are left to others")
		got, err = one.ClaimSessions(t.Context(), places, first, until(), 16)
		require.NoError(t, err)
		require.Len(t, got, 1)
		got, err = two.ClaimSessions(t.Context(), places, second, until(), 16)
		require.NoError(t, err)
		require.Empty(t, got)
		chunk := func(seq int64) *customer.Chunk {
			return &customer.Chunk{SessionID: queued.ID, FirstSeq: seq, LastSeq: seq, Bytes: 1, Span: 1, Lines: []byte("{}\n")}
		}
		require.NoError(t, one.AppendOutput(t.Context(), first, until(), chunk(1)))
		clock.Advance(16 * time.Second)
		got, err = two.ClaimSessions(t.Context(), places, second, until(), 16)
		require.NoError(t, err)
		require.Len(t, got, 1, "a lease that ran out is taken")
		require.ErrorIs(t, one.AppendOutput(t.Context(), first, until(), chunk(2)), models.ErrLeaseLost)
		require.ErrorIs(t, one.CloseSession(t.Context(), queued.ID, first, customer.End{State: customer.Failed}), models.ErrLeaseLost)
		require.ErrorIs(t, two.AppendOutput(t.Context(), second, until(), chunk(1)), models.ErrLeaseLost, "no line is stored twice")
		require.NoError(t, two.AppendOutput(t.Context(), second, until(), chunk(2)))
		_, err = two.StopSession(t.Context(), queued.SandboxID)
		require.NoError(t, err)
	})
}

func TestS2_021_S2_034_StartsAndStopsRace(t *testing.T) {
	each(t, func(t *testing.T, _ *modelstest.Clock, one, two *customer.Store, queued *customer.Session) {
		for range 20 {
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					s := []*customer.Store{one, two}[i%2]
					if i < 2 {
						_, err := s.StartSession(t.Context(), queued.OrgID, queued.SandboxID, "key:test")
						require.NoError(t, err)
					} else {
						_, err := s.StopSession(t.Context(), queued.SandboxID)
						require.NoError(t, err)
					}
				})
			}
			all.Wait()
		}
		last, err := one.StopSession(t.Context(), queued.SandboxID)
		require.NoError(t, err)
		require.True(t, last.Closed())
		got, err := one.ClaimSessions(t.Context(), places, uuid.New(), last.UpdatedAt.Add(time.Hour), 16)
		require.NoError(t, err)
		require.Empty(t, got, "nothing is left to start")
	})
}

func TestS2_054_NoMoreIsKeptWhereTinyChunksGoForLargeOnes(t *testing.T) {
	each(t, func(t *testing.T, clock *modelstest.Clock, one, _ *customer.Store, queued *customer.Session) {
		token := uuid.New()
		until := clock.Now().Add(time.Hour)
		_, err := one.ClaimSessions(t.Context(), places, token, until, 16)
		require.NoError(t, err)
		const tiny, large, size = 600, 10, 1 << 20
		for seq := int64(1); seq <= tiny+large; seq++ {
			c := &customer.Chunk{SessionID: queued.ID, FirstSeq: seq, LastSeq: seq, Bytes: 1, Span: 1, Lines: []byte("{}\n")}
			if seq > tiny {
				c.Bytes, c.Span = size, size
			}
			require.NoError(t, one.AppendOutput(t.Context(), token, until, c))
			now, err := one.Session(t.Context(), queued.ID)
			require.NoError(t, err)
			require.LessOrEqual(t, now.KeptBytes, int64(customer.KeptBytes))
		}
		first, err := one.Output(t.Context(), queued.ID, 0)
		require.NoError(t, err)
		require.EqualValues(t, tiny+large-customer.KeptBytes/size+1, first.FirstSeq, "the newest are there")
		at, err := one.ByteAt(t.Context(), queued.ID, tiny)
		require.NoError(t, err)
		require.EqualValues(t, tiny, at, "where a dropped one began is known")
	})
}

func TestNothingIsClaimedWhereNoBoxIsServed(t *testing.T) {
	each(t, func(t *testing.T, clock *modelstest.Clock, one, _ *customer.Store, _ *customer.Session) {
		got, err := one.ClaimSessions(t.Context(), nil, uuid.New(), clock.Now().Add(time.Minute), 16)
		require.NoError(t, err)
		require.Empty(t, got)
	})
}

func TestS2_034_AStopThatIsAskedForComesBeforeEveryStart(t *testing.T) {
	each(t, func(t *testing.T, clock *modelstest.Clock, one, two *customer.Store, queued *customer.Session) {
		token := uuid.New()
		_, err := one.ClaimSessions(t.Context(), places, token, clock.Now().Add(time.Hour), 16)
		require.NoError(t, err)
		first, err := one.SendStart(t.Context(), queued.ID, token, 1)
		require.NoError(t, err)
		clock.Advance(time.Second)
		again, err := one.SendStart(t.Context(), queued.ID, token, 2)
		require.NoError(t, err, "its answer was lost: it is sent again")
		require.Equal(t, first.StartSentAt, again.StartSentAt)
		require.EqualValues(t, 2, again.AwakeEpoch)
		asked, err := two.StopSession(t.Context(), queued.SandboxID)
		require.NoError(t, err)
		require.False(t, asked.Closed(), "it may run")
		_, err = one.SendStart(t.Context(), queued.ID, token, 2)
		require.ErrorIs(t, err, models.ErrLeaseLost)
	})
}

func TestS2_027_ANewSessionIsTheNewestWhateverTheClockSays(t *testing.T) {
	each(t, func(t *testing.T, clock *modelstest.Clock, one, _ *customer.Store, queued *customer.Session) {
		for range 8 { // the clock stands, or is behind that of who made the one before
			clock.Advance(-time.Millisecond)
			_, err := one.StopSession(t.Context(), queued.SandboxID)
			require.NoError(t, err)
			next, err := one.StartSession(t.Context(), queued.OrgID, queued.SandboxID, "key:test")
			require.NoError(t, err)
			newest, err := one.NewestSession(t.Context(), queued.SandboxID)
			require.NoError(t, err)
			require.Equal(t, next.ID, newest.ID)
		}
	})
}
