package models_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestOfEqualRequestsOneBegins(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		s := db.Open(t)
		org, user := uuid.New(), uuid.New()
		var begun atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				earlier, err := s.BeginRequest(t.Context(), &models.Request{OrgID: org, UserID: user, Key: "k", Fingerprint: "f"})
				if err == nil && earlier == nil {
					begun.Add(1)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, begun.Load())
	})
}

func TestARequestIsRememberedForADay(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		clock := modelstest.NewClock()
		s := db.Open(t, models.WithClock(clock.Now))
		begin := func(org uuid.UUID, fingerprint string) (*models.Request, *models.Request) {
			r := &models.Request{OrgID: org, UserID: org, Key: "k", Fingerprint: fingerprint}
			earlier, err := s.BeginRequest(t.Context(), r)
			require.NoError(t, err)
			return r, earlier
		}
		org := uuid.New()
		first, earlier := begin(org, "one")
		require.Nil(t, earlier)
		_, others := begin(uuid.New(), "one")
		require.Nil(t, others, "a key is its caller's own")
		_, earlier = begin(org, "two")
		require.Equal(t, "one", earlier.Fingerprint)
		require.Zero(t, earlier.Status)

		first.Status, first.ContentType, first.Answer = 201, "application/json", []byte(`{"a":1}`)
		require.NoError(t, s.AnswerRequest(t.Context(), first))
		_, earlier = begin(org, "one")
		require.Equal(t, 201, earlier.Status)
		require.Equal(t, "application/json", earlier.ContentType)
		require.Equal(t, `{"a":1}`, string(earlier.Answer))

		clock.Advance(models.RequestLife - time.Microsecond)
		gone, err := s.PurgeRequests(t.Context(), 10)
		require.NoError(t, err)
		require.Zero(t, gone)
		clock.Advance(time.Microsecond)
		second, earlier := begin(org, "two")
		require.Nil(t, earlier, "forgotten, and taken anew")
		require.NoError(t, s.AnswerRequest(t.Context(), first), "an answer that comes a day late")
		_, earlier = begin(org, "two")
		require.Zero(t, earlier.Status, "is not that of the new request")
		gone, err = s.PurgeRequests(t.Context(), 10)
		require.NoError(t, err)
		require.Equal(t, 1, gone, "the other caller's")

		require.NoError(t, s.ForgetRequest(t.Context(), second))
		_, earlier = begin(org, "three")
		require.Nil(t, earlier)
	})
}
