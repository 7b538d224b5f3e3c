package models_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func claimed(claims []models.Claim) []uuid.UUID {
	var ids []uuid.UUID
	for _, c := range claims {
		ids = append(ids, c.Box.ID)
	}
	return ids
}

func TestClaimLeasesWhatHasWorkEarliestFirst(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		third := seed(t, s, work(now.Add(-time.Minute)))
		first := seed(t, s, work(now.Add(-3*time.Minute)))
		second := seed(t, s, work(now.Add(-2*time.Minute)))
		seed(t, s, work(now.Add(time.Hour)))
		seed(t, s)

		claims, err := s.ClaimBoxes(ctx, here, 2, time.Minute, 30*time.Second)
		require.NoError(t, err)
		require.Equal(t, []uuid.UUID{first.Box.ID, second.Box.ID}, claimed(claims), "no more than there are free slots")
		for _, c := range claims {
			require.NotEqual(t, uuid.Nil, c.Token)
			require.Equal(t, c.Token, *c.Box.LeaseToken)
			require.Equal(t, c.Box.Generation, c.Generation)
			sameTime(t, c.Now.Add(time.Minute), c.Box.LeaseUntil)
			sameTime(t, c.Now.Add(30*time.Second), c.Box.PrepareUntil)
		}
		claims, err = s.ClaimBoxes(ctx, here, 10, time.Minute, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []uuid.UUID{third.Box.ID}, claimed(claims), "leased rows are left alone")
		none, err := s.ClaimBoxes(ctx, here, 0, time.Minute, time.Minute)
		require.NoError(t, err)
		require.Empty(t, none)
	})
}

func TestAClaimBringsWhatAStepIsDecidedOn(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		full := seed(t, s, work(now.Add(-3*time.Minute)), keepAlive, named("sbx-1"), func(f *seeded) {
			f.Box.Identities = append(f.Box.Identities, &models.Identity{
				Kind: models.IdentitySnapshot, ProviderID: "snap-1", SeenAt: now.Add(-time.Second), GoneAt: ptr(now),
			})
			f.Box.Desired = models.WantSuspended
		})
		old := older(t, s, full, func(b *models.Sandbox) { b.NextStepAt = ptr(now.Add(-2 * time.Minute)) })
		alone := seed(t, s, work(now.Add(-time.Minute)), func(f *seeded) { f.Run = nil })
		_, err := modelstest.Of(t, s).Raw().NewRaw("INSERT INTO sandbox_attachments (sandbox_id, process, until) VALUES (?, ?, ?), (?, ?, ?)",
			full.Box.ID, uuid.New(), now.Add(time.Minute), alone.Box.ID, uuid.New(), now.Add(-time.Second)).Exec(ctx)
		require.NoError(t, err)

		claims, err := s.ClaimBoxes(ctx, here, 10, time.Minute, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []uuid.UUID{full.Box.ID, old.ID, alone.Box.ID}, claimed(claims))

		require.Equal(t, full.Run.ID, claims[0].Run.ID)
		require.Equal(t, models.RunFailed, claims[0].Run.Status)
		require.True(t, claims[0].Newest)
		require.True(t, claims[0].KeepAlive)
		require.True(t, claims[0].AttachedAt)
		require.Len(t, claims[0].Box.Identities, 2)
		require.Equal(t, "sbx-1", claims[0].Box.Identities[0].ProviderID, "oldest first")
		require.Len(t, claims[0].Box.Open(), 1)

		modelstest.Set(t, s, full.Box, "desired = ?, lease_until = NULL", models.WantDeleted)
		again := claim(t, s)
		require.Equal(t, full.Run.ID, again.Run.ID)
		require.False(t, again.KeepAlive || again.AttachedAt, "neither holds a delete up: they are not read")

		require.False(t, claims[1].Newest)
		require.False(t, claims[1].AttachedAt)
		require.Empty(t, claims[1].Box.Identities)

		require.Nil(t, claims[2].Run)
		require.False(t, claims[2].Newest)
		require.False(t, claims[2].KeepAlive)
		require.False(t, claims[2].AttachedAt, "an attachment that ran out is none")
	})
}

func TestBR_03_AProcessClaimsOnlyPlacesItServes(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, past := t.Context(), s.Now().Add(-time.Minute)
		elsewhere := seed(t, s, work(past), func(f *seeded) { f.Box.Location = "host-b" })
		other := seed(t, s, work(past), func(f *seeded) { f.Box.Backend = "acme" })
		claims, err := s.ClaimBoxes(ctx, here, 10, time.Minute, time.Minute)
		require.NoError(t, err)
		require.Empty(t, claims)
		next, err := s.NextStepAt(ctx, here)
		require.NoError(t, err)
		require.Nil(t, next)
		for p, f := range map[models.Place]seeded{{Backend: here.Backend, Location: "host-b"}: elsewhere, {Backend: "acme"}: other} {
			claims, err := s.ClaimBoxes(ctx, p, 10, time.Minute, time.Minute)
			require.NoError(t, err)
			require.Equal(t, []uuid.UUID{f.Box.ID}, claimed(claims))
		}
	})
}

func TestTheBudgetOfPreparingStepsIsNotUsedUpWhileNobodyHasTheBox(t *testing.T) {
	clock := modelstest.NewClock()
	for name, gone := range map[string]func(t *testing.T, s *models.Store, c models.Claim){
		"the holder died": func(*testing.T, *models.Store, models.Claim) {},
		"the holder let go": func(t *testing.T, s *models.Store, c models.Claim) {
			require.NoError(t, s.Release(t.Context(), c.Box.ID, c.Token))
		},
		"the only process was started again": func(t *testing.T, s *models.Store, _ models.Claim) {
			require.NoError(t, s.ReleaseAll(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			modelstest.Each(t, func(t *testing.T, s *models.Store) {
				f := seed(t, s)
				require.NoError(t, s.Order(t.Context(), f.Box.ID, models.WantRunning, "user:u", "resume"))
				gone(t, s, claim(t, s))
				clock.Advance(time.Hour)
				resume := claim(t, s)
				require.Zero(t, resume.Box.Attempts, "a resume is not given up for it")
				require.NoError(t, s.Release(t.Context(), f.Box.ID, resume.Token))

				require.NoError(t, s.Order(t.Context(), f.Box.ID, models.WantSuspended, "callback", "callback"))
				last := claim(t, s)
				for range 3 {
					gone(t, s, last)
					clock.Advance(time.Hour)
					next := claim(t, s)
					require.NotEqual(t, last.Token, next.Token)
					sameTime(t, next.Now.Add(time.Minute), next.Box.PrepareUntil)
					last = next
				}
				gone(t, s, last)
				clock.Advance(time.Hour)
				sameTime(t, *last.Box.PrepareUntil, claim(t, s).Box.PrepareUntil) // what kills its holder again and again is not prepared for ever
			}, models.WithClock(clock.Now))
		})
	}
}

func TestNextStepAtIsTheLaterOfStepAndLeasePerRow(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		next := func() *time.Time {
			at, err := s.NextStepAt(ctx, here)
			require.NoError(t, err)
			return at
		}
		require.Nil(t, next(), "everything is at rest")
		lease := func(until time.Time) func(*seeded) {
			return func(f *seeded) { f.Box.LeaseToken, f.Box.LeaseUntil = ptr(uuid.New()), &until }
		}
		at := func(step time.Time) func(*seeded) { return func(f *seeded) { f.Box.NextStepAt = &step } }

		seed(t, s, lease(now.Add(time.Second)))
		require.Nil(t, next(), "a lease on a row at rest is no work to wait for")
		seed(t, s, at(now.Add(-time.Minute)), lease(now.Add(40*time.Second)))
		sameTime(t, now.Add(40*time.Second), next())
		seed(t, s, at(now.Add(50*time.Second)), lease(now.Add(10*time.Second)))
		sameTime(t, now.Add(40*time.Second), next())
		seed(t, s, at(now.Add(20*time.Second)), lease(now.Add(15*time.Second)))
		sameTime(t, now.Add(20*time.Second), next())
		seed(t, s, at(now.Add(5*time.Second)))
		sameTime(t, now.Add(5*time.Second), next())
		seed(t, s, at(now.Add(-time.Second)), lease(now.Add(-time.Millisecond)))
		require.False(t, next().After(now), "a lease that is past is not live")
	}, models.WithClock(clock.Now))
}

func TestRenewReleaseAndTakeover(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		f := seed(t, s, work(s.Now().Add(-time.Second)))
		first := claim(t, s)
		clock.Advance(45 * time.Second)
		generation, err := s.Renew(ctx, f.Box.ID, first.Token, time.Minute)
		require.NoError(t, err)
		require.EqualValues(t, 1, generation)
		clock.Advance(45 * time.Second)
		none, err := s.ClaimBoxes(ctx, here, 1, time.Minute, time.Minute)
		require.NoError(t, err)
		require.Empty(t, none, "renewed")

		clock.Advance(time.Minute)
		second := claim(t, s)
		_, err = s.Renew(ctx, f.Box.ID, first.Token, time.Minute)
		require.ErrorIs(t, err, models.ErrLeaseLost)
		_, err = s.Reload(ctx, f.Box.ID, first.Token)
		require.ErrorIs(t, err, models.ErrLeaseLost)
		require.NoError(t, s.Release(ctx, f.Box.ID, first.Token))
		require.True(t, box(t, s, f.Box.ID).Leased(s.Now()), "only the holder gives a lease back")

		step := *second.Box.NextStepAt
		require.NoError(t, s.Release(ctx, f.Box.ID, second.Token))
		b := box(t, s, f.Box.ID)
		require.Nil(t, b.LeaseToken)
		require.Nil(t, b.LeaseUntil)
		sameTime(t, step, b.NextStepAt)
	}, models.WithClock(clock.Now))
}

func TestRenewReturnsTheGenerationOfAnOrderThatCameIn(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		f := seed(t, s, func(f *seeded) { f.Box.NextStepAt = ptr(s.Now()) })
		c := claim(t, s)
		require.NoError(t, s.Order(ctx, f.Box.ID, models.WantRunning, "user:ana", "look inside"))
		generation, err := s.Renew(ctx, f.Box.ID, c.Token, time.Minute)
		require.NoError(t, err)
		require.Equal(t, c.Generation+1, generation)
		again, err := s.Reload(ctx, f.Box.ID, c.Token)
		require.NoError(t, err)
		require.Equal(t, generation, again.Generation)
		require.Equal(t, models.WantRunning, again.Box.Desired)
		require.Equal(t, c.Token, again.Token)
		require.Equal(t, f.Run.ID, again.Run.ID)
	})
}

func TestReleaseAllClearsEveryLease(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, past := t.Context(), s.Now().Add(-time.Minute)
		for range 3 {
			seed(t, s, work(past))
		}
		claims, err := s.ClaimBoxes(ctx, here, 3, time.Hour, time.Minute)
		require.NoError(t, err)
		require.Len(t, claims, 3)
		require.NoError(t, s.ReleaseAll(ctx))
		claims, err = s.ClaimBoxes(ctx, here, 3, time.Hour, time.Minute)
		require.NoError(t, err)
		require.Len(t, claims, 3)
	})
}

func TestS1_034_ThirtyRowsWhoseDeleteNeverSucceedsKeepNoOtherRowWaiting(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, slots := t.Context(), 4
		stuck := make(map[uuid.UUID]int)
		for n := range 30 {
			f := seed(t, s, work(s.Now().Add(-time.Hour)), named(fmt.Sprintf("stuck-%d", n)))
			stuck[f.Box.ID] = 0
		}
		healthy := make(map[uuid.UUID]bool)
		pass := func() {
			claims, err := s.ClaimBoxes(ctx, here, slots, time.Minute, time.Minute)
			require.NoError(t, err)
			for _, c := range claims {
				st := step(c, "delete")
				st.Release, st.ClearStamp = true, true
				if _, bad := stuck[c.Box.ID]; bad {
					stuck[c.Box.ID]++
					st.Attempts = c.Box.Attempts + 1
					st.Next = ptr(c.Now.Add(time.Duration(1<<st.Attempts) * time.Second))
					st.LastError = ptr("refused")
				} else {
					st.Observed = ptr(models.SeenDeleted)
					healthy[c.Box.ID] = true
				}
				_, err := s.RecordStep(ctx, st)
				require.NoError(t, err)
			}
		}
		for range 8 {
			pass()
		}
		for id := range stuck {
			require.Positive(t, stuck[id], "each was tried")
		}
		clock.Advance(2 * time.Second) // all thirty have work again …
		var fresh []seeded
		for range 4 {
			fresh = append(fresh, seed(t, s, work(s.Now().Add(-time.Millisecond))))
		}
		for range 9 { // … and the fresh rows come after one round of them at most
			pass()
		}
		for _, f := range fresh {
			require.True(t, healthy[f.Box.ID], "a fresh row waits for rows that cannot be deleted")
			require.Equal(t, models.SeenDeleted, box(t, s, f.Box.ID).Observed)
		}
	}, models.WithClock(clock.Now))
}
