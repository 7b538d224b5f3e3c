package sandbox_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// open opens a conversation, as PUT /runtimes does.
func (r *rig) open(conversation uuid.UUID) *models.Runtime {
	r.Helper()
	runtime, _, err := r.store.OpenRuntime(r.Context(), models.Runtime{
		OrgID: r.auto.OrgID, UserID: r.auto.UserID, ConversationID: conversation, Backend: place.Backend,
		Workspace: "/checkouts/" + conversation.String(), SessionKey: "session", SecretKey: "secret",
	}, "user:1")
	require.NoError(r, err)
	return runtime
}

func TestTheSettlerMakesTheBoxOfAConversationOnce(t *testing.T) {
	each(t, sandboxtest.Quirks{SlowCreate: 2}, withDelay, func(r *rig) {
		conversation := uuid.New()
		box := r.open(conversation).Box
		r.open(conversation)
		r.settle()
		r.is(box.ID, models.WantRunning, models.SeenRunning, true)
		require.Len(r, r.fake.Alive(), 1)
		asked := r.fake.Asked(box.ID)
		require.Equal(r, sandbox.Spec{
			Label: sandbox.Label{Deployment: r.deploy, WorkspaceID: box.ID}, Owner: sandbox.Owner{OrgID: r.auto.OrgID, UserID: r.auto.UserID},
			Conversation: conversation, Workspace: "/checkouts/" + conversation.String(), SessionKey: "session", SecretKey: "secret",
		}, asked)

		r.order(box.ID, models.WantSuspended, "user:1")
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.Equal(r, box.ID, r.open(conversation).Box.ID)
		r.settle()
		r.is(box.ID, models.WantRunning, models.SeenRunning, true)
		require.Len(r, r.fake.Alive(), 1)
	})
}

func TestACreateThatFailed(t *testing.T) {
	t.Run("for certain closes the row, and the next caller gets another", func(t *testing.T) {
		each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
			conversation := uuid.New()
			box := r.open(conversation).Box
			r.fake.Fail("Create", sandbox.ErrInvalid)
			r.settle()
			b := r.is(box.ID, models.WantRunning, models.SeenDeleted, true)
			require.NotNil(r, b.LastError)
			again := r.open(conversation).Box
			require.NotEqual(r, box.ID, again.ID)
			r.settle()
			r.is(again.ID, models.WantRunning, models.SeenRunning, true)
			require.Len(r, r.fake.Alive(), 1)
		})
	})
	t.Run("and whose answer was lost is looked up, not repeated", func(t *testing.T) {
		each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
			box := r.open(uuid.New()).Box
			r.fake.LoseAnswer("Create", 1)
			r.settleFor(20 * time.Minute)
			r.is(box.ID, models.WantRunning, models.SeenRunning, true)
			require.Len(r, r.fake.Alive(), 1)
		})
	})
}

func TestABoxOfAConversationThatIsNotMadeYet(t *testing.T) {
	t.Run("is closed without a call when it is ordered deleted", func(t *testing.T) {
		each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
			box := r.open(uuid.New()).Box
			r.order(box.ID, models.WantDeleted, "user:1")
			r.settle()
			r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
			require.Zero(r, r.fake.Count("Create"))
		})
	})
	t.Run("waits for the next caller when the service stops", func(t *testing.T) {
		each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
			conversation := uuid.New()
			box := r.open(conversation).Box
			r.order(box.ID, models.WantSuspended, "service")
			r.settle()
			require.Zero(r, r.fake.Count("Create"))
			require.Equal(r, box.ID, r.open(conversation).Box.ID)
			r.settle()
			r.is(box.ID, models.WantRunning, models.SeenRunning, true)
		})
	})
}

func TestAFailedBoxOfAConversationIsNotDeletedForIt(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		conversation := uuid.New()
		box := r.open(conversation).Box
		r.settle()
		r.fake.Break(box.ID)
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		r.settleFor(20 * time.Minute)
		b := r.box(box.ID)
		require.Equal(r, models.WantRunning, b.Desired)
		require.Len(r, r.fake.Alive(), 1)
	})
}
