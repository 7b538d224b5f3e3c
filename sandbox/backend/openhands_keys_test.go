package backend

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/tests/cloudstub"
)

func TestS1_032_AKeyIsMintedOncePerUserAndKept(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		stub := cloudstub.New(t)
		c := cloudOn(t, stub, s)
		ref := c.box(t)
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() { _, _ = c.Inspect(t.Context(), ref) })
		}
		group.Wait()
		require.Len(t, stub.Calls("mint"), 1)
		again := cloudOn(t, stub, s) // a restart
		_, err := again.Inspect(t.Context(), ref)
		require.NoError(t, err)
		require.Len(t, stub.Calls("mint"), 1)
		bob := sandbox.Owner{OrgID: c.owner.OrgID, UserID: uuid.MustParse("0b000000-0000-4000-8000-000000000002")}
		_, err = c.Inspect(t.Context(), sandbox.Ref{Owner: bob, Identities: ref.Identities})
		require.ErrorIs(t, err, sandbox.ErrGone, "another user's key does not show it")
		require.Len(t, stub.Calls("mint"), 2)
	})
}

func TestARefusedKeyIsRenewedOnce(t *testing.T) {
	c := newCloud(t, nil)
	ref := c.box(t)
	c.stub.Revoke(cloudstub.Alice)
	_, err := c.Inspect(t.Context(), ref)
	require.NoError(t, err)
	require.Len(t, c.stub.Calls("mint"), 2)

	c.stub.FailAlways("get", cloudstub.Fault{Status: 403})
	for range 10 {
		_, err = c.Inspect(t.Context(), ref)
		require.ErrorIs(t, err, sandbox.ErrRefused)
		require.NotErrorIs(t, err, sandbox.ErrGone)
	}
	require.Len(t, c.stub.Calls("mint"), 3, "a key that is refused just after it was minted is not minted again at once")
	c.clock.Advance(vainFor + time.Second)
	_, err = c.Inspect(t.Context(), ref)
	require.ErrorIs(t, err, sandbox.ErrRefused)
	require.Len(t, c.stub.Calls("mint"), 4)
	c.stub.Heal()
	_, err = c.Inspect(t.Context(), ref)
	require.NoError(t, err)
}

func TestAKeyThatAnotherProcessRenewedIsTaken(t *testing.T) {
	s := modelstest.NewSQLite(t).Open(t)
	stub := cloudstub.New(t)
	one, two := cloudOn(t, stub, s), cloudOn(t, stub, s)
	ref := one.box(t)
	_, err := two.Inspect(t.Context(), ref)
	require.NoError(t, err)
	stub.Revoke(cloudstub.Alice)
	for _, c := range []*cloud{one, two} {
		_, err := c.Inspect(t.Context(), ref)
		require.NoError(t, err)
	}
	require.Len(t, stub.Calls("mint"), 2)
}

func TestAUserWhoLeftIsRefusedAndTheirBoxIsNotGone(t *testing.T) {
	c := newCloud(t, nil)
	ref := c.box(t)
	c.stub.Leave(cloudstub.Alice)
	for range 3 {
		err := c.Delete(t.Context(), ref)
		require.ErrorIs(t, err, sandbox.ErrRefused)
		require.NotErrorIs(t, err, sandbox.ErrGone)
	}
	require.Len(t, c.stub.Alive(), 1)
}

func TestAFailingMintSaysNothingAboutABox(t *testing.T) {
	for status, passes := range map[int]bool{500: true, 503: true, 429: true, 401: false, 403: false, 404: false, 422: false} {
		c := newCloud(t, nil)
		c.stub.FailAlways("mint", cloudstub.Fault{Status: status})
		ref := sandbox.Ref{Owner: c.owner, Identities: []sandbox.Identity{{Kind: models.IdentityBox, ProviderID: "sbx-1"}}}
		_, inspectErr := c.Inspect(t.Context(), ref)
		for what, err := range map[string]error{
			"inspect": inspectErr, "suspend": c.Suspend(t.Context(), ref, accept), "delete": c.Delete(t.Context(), ref),
			"create": c.Create(t.Context(), sandbox.Spec{Owner: c.owner}, accept),
		} {
			require.NotErrorIs(t, err, sandbox.ErrGone, "%s, mint %d", what, status)
			require.ErrorIs(t, err, sandbox.ErrNotMade, "%s, mint %d", what, status)
			if passes {
				require.NotErrorIs(t, err, sandbox.ErrRefused, "%s, mint %d", what, status)
			} else {
				require.ErrorIs(t, err, sandbox.ErrRefused, "%s, mint %d", what, status)
			}
		}
		require.Empty(t, c.stub.Calls("create", "get", "pause", "delete"))
	}
}
