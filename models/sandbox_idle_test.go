package models_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// awake is a box that somebody woke two hours ago, after its run, and nobody has used since.
func awake(f *seeded) {
	seen := f.Box.OrderedAt
	f.Box.Desired, f.Box.Observed, f.Box.ObservedAt = models.WantRunning, models.SeenRunning, &seen
}

func idleBoxes(t *testing.T, s *models.Store) []uuid.UUID {
	t.Helper()
	boxes, err := s.IdleBoxes(t.Context(), places, s.Now().Add(-20*time.Minute), 10)
	require.NoError(t, err)
	var ids []uuid.UUID
	for _, b := range boxes {
		ids = append(ids, b.ID)
	}
	return ids
}

func TestS3_002_S3_025_BoxesThatLookIdleByTheirRows(t *testing.T) {
	recent := func(s *models.Store) time.Time { return s.Now().Add(-19 * time.Minute) }
	cases := map[string]struct {
		change func(s *models.Store, f *seeded)
		idle   bool
	}{
		"S3-002 unused since its run ended":         {func(*models.Store, *seeded) {}, true},
		"S3-002 of a conversation, without a run":   {func(_ *models.Store, f *seeded) { f.Run = nil }, true},
		"S3-004 accessed before the TTL":            {func(s *models.Store, f *seeded) { f.Box.LastAccessAt = ptr(recent(s).Add(-time.Hour)) }, true},
		"S3-004 accessed within the TTL":            {func(s *models.Store, f *seeded) { f.Box.LastAccessAt = ptr(recent(s)) }, false},
		"kept or keep_alive, for it is not deleted": {func(s *models.Store, f *seeded) { f.Box.KeptAt = ptr(s.Now()); keepAlive(f) }, true},
		"a pause of it was given up":                {func(_ *models.Store, f *seeded) { f.Box.Desired = models.WantSuspended }, true},
		"S3-003 its run runs":                       {func(_ *models.Store, f *seeded) { running(f) }, false},
		"its run ended within the TTL":              {func(s *models.Store, f *seeded) { f.Run.CompletedAt = ptr(recent(s)) }, false},
		"ordered within the TTL":                    {func(s *models.Store, f *seeded) { f.Box.OrderedAt = recent(s) }, false},
		"seen to wake by itself within the TTL":     {func(s *models.Store, f *seeded) { f.Box.ObservedAt = ptr(recent(s)) }, false},
		"S3-025 still starting":                     {func(_ *models.Store, f *seeded) { f.Box.Observed = models.SeenProvisioning }, false},
		"asleep":                                    {func(_ *models.Store, f *seeded) { f.Box.Observed = models.SeenSuspended }, false},
		"S3-022 on its way to another state":        {func(s *models.Store, f *seeded) { f.Box.NextStepAt = ptr(s.Now().Add(time.Hour)) }, false},
		"its deletion is decided":                   {func(_ *models.Store, f *seeded) { f.Box.Desired = models.WantDeleted }, false},
		"leased": {func(s *models.Store, f *seeded) {
			f.Box.LeaseToken, f.Box.LeaseUntil = ptr(uuid.New()), ptr(s.Now().Add(time.Minute))
		}, false},
		"elsewhere": {func(_ *models.Store, f *seeded) { f.Box.Location = "another host" }, false},
		"S3-003 it was asked, and is to be asked again later": {func(s *models.Store, f *seeded) { f.Box.IdleCheckAt = ptr(s.Now().Add(time.Second)) }, false},
		"it is to be asked again now":                         {func(s *models.Store, f *seeded) { f.Box.IdleCheckAt = ptr(s.Now()) }, true},
	}
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				f := seed(t, s, awake, func(f *seeded) { c.change(s, f) })
				defer modelstest.Set(t, s, f.Box, "observed = ?", models.SeenDeleted)
				ordered, err := s.OrderIdle(t.Context(), f.Box, s.Now().Add(-20*time.Minute), "idle for 20m0s")
				require.NoError(t, err)
				if f.Box.Location == "" {
					require.Equal(t, c.idle, ordered, "the same holds when it is ordered")
				}
				if !c.idle {
					require.Empty(t, idleBoxes(t, s))
					return
				}
				require.Empty(t, idleBoxes(t, s), "ordered")
				b := box(t, s, f.Box.ID)
				require.Equal(t, []any{models.WantSuspended, models.ByIdle, "idle for 20m0s"}, []any{b.Desired, b.OrderedBy, b.OrderReason})
				require.Contains(t, whats(t, s, b.ID), "ordered")
				modelstest.Set(t, s, f.Box, "next_step_at = NULL, ordered_at = ?", s.Now().Add(-time.Hour))
				require.Equal(t, []uuid.UUID{b.ID}, idleBoxes(t, s), "as it was before")
			})
		}
	})
}

func TestS3_021_ACandidateIsOrderedOnlyIfItIsStillWhatItWas(t *testing.T) {
	between := map[string]func(t *testing.T, s *models.Store, b *models.Sandbox){
		"S3-004 accessed": func(t *testing.T, s *models.Store, b *models.Sandbox) {
			require.NoError(t, s.Touch(t.Context(), b.ID, s.Now()))
		},
		"S3-018 attached": func(t *testing.T, s *models.Store, b *models.Sandbox) {
			require.NoError(t, attach(t.Context(), s, b.ID, uuid.New(), s.Now().Add(time.Minute)))
		},
		"ordered": func(t *testing.T, s *models.Store, b *models.Sandbox) {
			require.NoError(t, s.Order(t.Context(), b.ID, models.WantRunning, "user:u", "resumed by hand"))
			modelstest.Set(t, s, b, "next_step_at = NULL, ordered_at = ?", s.Now().Add(-time.Hour))
		},
		"started anew": func(t *testing.T, s *models.Store, b *models.Sandbox) { startAnew(t, s, b) },
		"asked by another process": func(t *testing.T, s *models.Store, b *models.Sandbox) {
			require.NoError(t, s.HoldIdle(t.Context(), b.ID, models.HeldAgent, s.Now().Add(time.Minute), ""))
		},
	}
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		for name, happens := range between {
			t.Run(name, func(t *testing.T) {
				f := seed(t, s, awake)
				boxes, err := s.IdleBoxes(t.Context(), places, s.Now().Add(-20*time.Minute), 10)
				require.NoError(t, err)
				require.Len(t, boxes, 1)
				happens(t, s, f.Box)
				generation := box(t, s, f.Box.ID).Generation
				ordered, err := s.OrderIdle(t.Context(), boxes[0], s.Now().Add(-20*time.Minute), "idle")
				require.NoError(t, err)
				require.False(t, ordered)
				require.Equal(t, generation, box(t, s, f.Box.ID).Generation)
				modelstest.Set(t, s, f.Box, "observed = ?", models.SeenDeleted)
			})
		}
	})
}

func TestWhyABoxIsHeldIsKeptUntilTheNextOrder(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f := seed(t, s, awake)
		again := s.Now().Add(5 * time.Minute)
		require.NoError(t, s.HoldIdle(t.Context(), f.Box.ID, models.HeldUnreadable, again, models.AttentionIdle))
		b := box(t, s, f.Box.ID)
		require.Equal(t, []any{models.HeldUnreadable, models.AttentionIdle}, []any{b.HeldBecause, b.NeedsAttention})
		sameTime(t, again, b.IdleCheckAt)
		require.NoError(t, s.HoldIdle(t.Context(), f.Box.ID, models.HeldAgent, again, ""))
		require.Empty(t, box(t, s, f.Box.ID).NeedsAttention, "it could be read again")
		modelstest.Set(t, s, f.Box, "needs_attention = 'box_failed'")
		require.NoError(t, s.HoldIdle(t.Context(), f.Box.ID, models.HeldUnreadable, again, models.AttentionIdle))
		require.Equal(t, "box_failed", box(t, s, f.Box.ID).NeedsAttention, "somebody else's reason stays")
		require.NoError(t, s.Order(t.Context(), f.Box.ID, models.WantRunning, "user:u", "access"))
		b = box(t, s, f.Box.ID)
		require.Empty(t, b.HeldBecause)
		require.Nil(t, b.IdleCheckAt)
	})
}

// Whoever comes in and whoever evicts take the box's lock: either the attachment is seen, or the one who comes in sees the order.
func TestS3_021_VolumeAnAttachmentAndAnEvictionNeverMissEachOther(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		for range modelstest.Volume(60) + 10 {
			f := seed(t, s, awake)
			var ordered bool
			var seen models.Desired
			race(t, func(ctx context.Context) (err error) {
				ordered, err = s.OrderIdle(ctx, f.Box, s.Now().Add(-20*time.Minute), "idle")
				return err
			}, func(ctx context.Context) error {
				if err := attach(ctx, s, f.Box.ID, uuid.New(), s.Now().Add(time.Minute)); err != nil {
					return err
				}
				b, err := s.Sandbox(ctx, uuid.Nil, f.Box.ID)
				seen = b.Desired
				return err
			})
			require.Equal(t, ordered, seen == models.WantSuspended)
		}
	})
}

// race lets actors go at once and waits for all.
func race(t *testing.T, actors ...func(context.Context) error) {
	t.Helper()
	var all sync.WaitGroup
	start := make(chan struct{})
	for _, act := range actors {
		all.Go(func() {
			<-start
			if err := act(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	all.Wait()
}
