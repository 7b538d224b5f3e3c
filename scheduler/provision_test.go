package scheduler

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func TestDispatch_BoxThatFailsIsReplacedByAnother(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		first := true
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Method == "Inspect" && first {
				first = false
				r.fake.Break(c.Workspace)
			}
		})
		run := r.pending()
		r.execute()
		run = r.run(run.ID)
		require.NotNil(r, run.BashCommandID)
		require.Equal(r, 2, run.Attempt)
		rows := r.boxes(run)
		require.Len(r, rows, 2, "every attempt has a row of its own")
		require.Equal(r, *run.BoxID, rows[1].ID)
		require.Equal(r, models.WantDeleted, rows[0].Desired)
		require.Nil(r, rows[0].LeaseToken)
		require.Equal(r, 1, r.fake.CountFor("Create", rows[0].ID), "create is never repeated on a row")
		r.settle()
		require.Equal(r, models.SeenDeleted, r.box(rows[0].ID).Observed)
		require.Len(r, r.fake.Alive(), 1)
		require.Nil(r, r.run(run.ID).CleanupDueAt)
	})
}

func TestDispatch_GivesUpAfterTheLastAttempt(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Method == "Inspect" {
				r.fake.Break(c.Workspace)
			}
		})
		run := r.pending()
		r.execute()
		run = r.run(run.ID)
		require.Equal(r, models.RunFailed, run.Status)
		require.Equal(r, "Sandbox failed to start: status=ERROR, status_detail=image_pull_error (attempts: 3)", *run.ErrorDetail)
		d := r.detail(run)
		require.Equal(r, "environment_unavailable", d.Kind)
		require.Equal(r, "sandbox_error", d.Code)
		require.Equal(r, 3, d.Attempts)
		require.True(r, d.Transient)
		r.fake.Watch(nil)
		r.settle()
		require.Empty(r, r.fake.Alive())
		require.Nil(r, run.CleanupDueAt, "nothing to look into: no stamp")
	})
}

func TestDispatch_BoxThatIsNeverReady(t *testing.T) {
	one(t, sandboxtest.Quirks{SlowCreate: 1 << 30}, func(r *rig) {
		r.dispatch.Settings.ReadyTimeout = time.Second
		r.dispatch.Settings.ProvisionMaxAttempts = 2
		run := r.pending()
		r.execute()
		run = r.run(run.ID)
		require.Equal(r, "Sandbox failed to start: not ready after 1s, status=STARTING (attempts: 2)", *run.ErrorDetail)
		require.Equal(r, "sandbox_ready_timeout", r.detail(run).Code)
	})
}

func TestBR24_QuotaSkipsTheRunWithOneCall(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		r.fake.FailAlways("Create", fmt.Errorf("CONCURRENCY_LIMIT_REACHED: %w", sandbox.ErrQuota))
		run := r.pending()
		r.execute()
		run = r.run(run.ID)
		require.Equal(r, models.RunSkipped, run.Status)
		require.Nil(r, run.ErrorDetail)
		require.Equal(r, "concurrency_limit", r.detail(run).Kind)
		require.True(r, r.detail(run).Transient)
		r.settle()
		box := r.box(*run.BoxID)
		require.Equal(r, models.SeenDeleted, box.Observed, "a definite refusal closes the row")
		require.Nil(r, box.NextStepAt)
		require.Equal(r, []string{"Create"}, r.fake.Methods(box.ID), "one call, and none for the clean-up")
	})
}

func TestDispatch_RefusedCreate(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		r.fake.FailAlways("Create", fmt.Errorf("403: %w", sandbox.ErrRefused))
		run := r.pending()
		r.execute()
		run = r.run(run.ID)
		require.Equal(r, models.RunFailed, run.Status)
		require.Equal(r, "Failed to get execution context", *run.ErrorDetail)
		require.False(r, r.detail(run).Transient)
		r.settle()
		require.Equal(r, []string{"Create"}, r.fake.Methods(*run.BoxID))
	})
}

func TestDispatch_CreateWhoseAnswerWasLostLeavesNoBox(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		// The box is made, but neither identity nor answer reaches us.
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Method == "Create" {
				r.fake.Plant(sandbox.Label{Deployment: r.dispatch.Deployment, WorkspaceID: c.Workspace})
			}
		})
		r.fake.FailAlways("Create", errors.New("connection reset"))
		run := r.pending()
		r.execute()
		run = r.run(run.ID)
		require.Equal(r, models.RunFailed, run.Status)
		require.Equal(r, "Failed to get execution context", *run.ErrorDetail)
		require.Len(r, r.fake.Alive(), 1)
		r.settle()
		require.Empty(r, r.fake.Alive(), "found by its label and deleted")
		require.Equal(r, models.SeenDeleted, r.box(*run.BoxID).Observed)
	})
}

func TestRetryDelay(t *testing.T) {
	require.Equal(t, 15*time.Second, retryDelay(30*time.Second, 1, 0))
	require.Equal(t, 30*time.Second, retryDelay(30*time.Second, 1, 0.5))
	require.Equal(t, 180*time.Second, retryDelay(30*time.Second, 3, 1))
	require.Zero(t, retryDelay(0, 5, 0.5))
}

func TestClassify(t *testing.T) {
	for raw, want := range map[string]string{
		"": "", "Back-off pulling: ImagePullBackOff": "image_pull_error", "runtime_ingress:not_ready:503 at host x": "runtime_ingress:not_ready:503",
		"0/5 nodes: Insufficient cpu": "insufficient_cpu", "something with a secret": "unclassified",
	} {
		require.Equal(t, want, sandbox.DetailClass(raw))
	}
}

func TestDispatch_ProviderThatIsDownFailsTheRun(t *testing.T) {
	for _, c := range []struct {
		err  error
		want models.StatusDetail
		open bool // whether a box may have been made
	}{
		{&sandbox.ProviderError{Status: 500, Body: "secret"}, models.StatusDetail{
			Kind: "server_error", StatusCode: 500, Detail: "sandbox_api get_execution_context returned HTTP 500",
			Fingerprint: "sandbox_api:get_execution_context:server_error:500",
		}, true},
		{&sandbox.ProviderError{Status: 429}, models.StatusDetail{
			Kind: "rate_limited", StatusCode: 429, Detail: "sandbox_api get_execution_context returned HTTP 429",
			Fingerprint: "sandbox_api:get_execution_context:rate_limited:429",
		}, true},
		{sandbox.ErrBreakerOpen, models.StatusDetail{
			Kind: "transport", Detail: sandbox.ErrBreakerOpen.Error(), Fingerprint: "sandbox_api:get_execution_context:transport",
		}, false},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			one(t, sandboxtest.Quirks{}, func(r *rig) {
				r.fake.FailAlways("Create", c.err)
				run := r.pending()
				r.execute()
				run = r.run(run.ID)
				require.Equal(r, models.RunFailed, run.Status)
				require.Equal(r, "Failed to get execution context", *run.ErrorDetail)
				got := r.detail(run)
				require.True(r, got.Transient)
				require.Equal(r, c.want.Kind, got.Kind)
				require.Equal(r, c.want.StatusCode, got.StatusCode)
				require.Equal(r, c.want.Detail, got.Detail)
				require.Equal(r, c.want.Fingerprint, got.Fingerprint)
				require.Equal(r, c.open, r.box(*run.BoxID).Observed == models.SeenProvisioning)
				require.Equal(r, 1, r.fake.Count("Create"))
			})
		})
	}
}
