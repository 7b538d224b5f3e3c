package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/loop"
	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func TestDispatch_StartsTheCommandOfARun(t *testing.T) {
	each(t, sandboxtest.Quirks{SlowCreate: 2}, func(r *rig) {
		run := r.pending()
		before := r.store.Now()
		r.execute()

		run = r.run(run.ID)
		require.Equal(r, models.RunRunning, run.Status)
		require.Equal(r, "Starting automation", *run.CurrentPhase)
		require.NotNil(r, run.StartingAt)
		require.WithinRange(r, *run.CheckAt, before.Add(firstCheck), r.store.Now().Add(firstCheck))
		require.WithinRange(r, *run.TimeoutAt, before.Add(12*time.Minute), r.store.Now().Add(12*time.Minute), "timeout and margin")
		require.NotNil(r, run.ProviderID, "the id is stored")

		box := r.box(*run.BoxID)
		require.Equal(r, models.SeenRunning, box.Observed)
		require.Nil(r, box.LeaseToken, "the lease is given back")
		require.NotNil(r, box.NextStepAt, "the settler has it now")
		require.EqualValues(r, 1, box.AwakeEpoch-box.OutputEpoch, "its output is still to be stored")

		agent := r.agent(box.ID)
		commands := agent.Commands()
		require.Len(r, commands, 1)
		require.Equal(r, commands[0].ID, *run.BashCommandID)
		work := homeWorkspace(run.ID, "/home/box")
		require.Equal(r, startCommand(work, "bash run.sh"), commands[0].Text)
		require.Equal(r, "tarball", agent.Uploaded(work.tarball))
		require.Equal(r, []string{"Create", "Inspect", "Inspect", "Inspect"}, r.fake.Methods(box.ID))
	})
}

func TestS0_018_S0_032_NativeTimersAreSetWhenTheBoxIsCreated(t *testing.T) {
	for name, tt := range map[string]struct {
		native    sandbox.Timer
		ttl, want time.Duration
	}{
		"the setting":                        {sandbox.Timer{Supported: true, Action: "suspend", Default: 15 * time.Minute}, 20 * time.Minute, 20 * time.Minute},
		"as much as the provider takes":      {sandbox.Timer{Supported: true, Action: "suspend", Max: 5 * time.Minute}, 20 * time.Minute, 5 * time.Minute},
		"switched off: the provider decides": {sandbox.Timer{Supported: true, Action: "suspend", Default: 15 * time.Minute}, 0, 0},
		"a provider without a timer":         {sandbox.Timer{}, 20 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			one(t, sandboxtest.Quirks{Idle: tt.native}, func(r *rig) {
				r.dispatch.Settings.IdleTTL = tt.ttl
				run := r.pending()
				r.execute()
				box := *r.run(run.ID).BoxID
				require.Equal(r, tt.want, r.fake.Asked(box).Idle)
				require.Equal(r, box, r.fake.Asked(box).Label.WorkspaceID, "the label is set with it")
			})
		})
	}
}

func TestS0_010_ABoxGetsNoCredentialButItsOwnRunToken(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		run := r.pending()
		r.execute()
		run = r.run(run.ID)
		env := r.agent(*run.BoxID).Uploaded(homeWorkspace(run.ID, "/home/box").env())
		values := map[string]string{}
		for line := range strings.Lines(env) {
			name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
			require.True(r, ok, line)
			values[name] = strings.Trim(value, "'")
		}
		for name := range values {
			if strings.Contains(name, "KEY") || strings.Contains(name, "TOKEN") || strings.Contains(name, "SECRET") {
				require.Contains(r, []string{"AUTOMATION_CALLBACK_API_KEY", "SESSION_API_KEY"}, name)
			}
		}
		of, err := r.store.VerifyRunToken(values["AUTOMATION_CALLBACK_API_KEY"])
		require.NoError(r, err)
		require.Equal(r, run.ID, of)
		r.clock.Advance(12*time.Minute + 25*time.Hour)
		_, err = r.store.VerifyRunToken(values["AUTOMATION_CALLBACK_API_KEY"])
		require.Error(r, err, "it ends a day after the deadline")
		require.Equal(r, r.box(*run.BoxID).SessionKey, values["SESSION_API_KEY"], "the key of the box's own agent server")
	})
}

func TestDispatch_CancelWhileCreateIsOnTheWire(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		hold := r.fake.Hold("Create")
		run := r.pending()
		done := make(chan error, 1)
		go func() { _, err := r.dispatch.pass(r.Context()); done <- err }()
		<-hold.Entered
		require.True(r, r.finish(run.ID, models.RunCancelled).Won)
		hold.Release()
		require.NoError(r, <-done)

		run = r.run(run.ID)
		require.Equal(r, models.RunCancelled, run.Status)
		box := r.box(*run.BoxID)
		require.Len(r, box.Identities, 1, "what create named is stored all the same")
		require.Equal(r, models.WantDeleted, box.Desired)
		require.Empty(r, r.agent(box.ID).Commands(), "nothing was started")
		require.Nil(r, run.StartingAt)
		r.settle()
		require.Empty(r, r.fake.Alive())
		require.Equal(r, models.SeenDeleted, r.box(box.ID).Observed)
	})
}

func TestDispatch_CancelBeforeCreateIsNoError(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run := r.pending()
		claimed, _, err := r.store.ClaimDispatch(r.Context(), r.dispatch.claim())
		require.NoError(r, err)
		require.Len(r, claimed, 1)
		hold := r.dispatch.holdBox(r.Context(), claimed[0].Box)
		require.True(r, r.finish(run.ID, models.RunCancelled).Won)
		err = r.dispatch.create(r.Context(), hold, claimed[0])
		require.ErrorIs(r, err, models.ErrDeletionOrdered)
		require.NoError(r, r.dispatch.letGo(hold, r.dispatch.conclude(r.Context(), run, err)), "a pass that failed would be backed off from")
		r.settle()
		require.Empty(r, r.fake.Calls())
		require.Equal(r, models.SeenDeleted, r.box(claimed[0].Box.ID).Observed)
	})
}

// A process that was away for longer than its lease: what failed in its attempt is no news about the attempt of another.
func TestDispatch_AnAttemptThatWasTakenOverDoesNotEndTheRun(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run := r.pending()
		claimed, _, err := r.store.ClaimDispatch(r.Context(), r.dispatch.claim())
		require.NoError(r, err)
		require.Len(r, claimed, 1)
		r.clock.Advance(2 * leaseTime)
		r.execute() // as the other process
		require.Equal(r, 2, r.run(run.ID).Attempt)

		late := executionFailure("Failed to upload the environment file", errors.New("connection refused"))
		require.NoError(r, r.dispatch.conclude(r.Context(), claimed[0].Run, late))
		run = r.run(run.ID)
		require.Equal(r, models.RunRunning, run.Status)
		require.Equal(r, models.WantRunning, run.Box.Desired)
		require.NoError(r, r.dispatch.conclude(r.Context(), run, late))
		require.Equal(r, models.RunFailed, r.run(run.ID).Status, "its own attempt's failure ends it")
	})
}

func TestDispatch_CancelIsNoticedAtEveryStep(t *testing.T) {
	steps := []string{"/ready", "/api/file/home", "/api/file/upload"}
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			one(t, sandboxtest.Quirks{}, func(r *rig) {
				run := r.pending()
				r.fake.Watch(func(c sandboxtest.Call) {
					if c.Method == "Inspect" {
						r.agent(c.Workspace).Watch(func(request string) {
							if strings.HasSuffix(request, step) {
								r.finish(run.ID, models.RunCancelled)
							}
						})
					}
				})
				r.execute()
				run = r.run(run.ID)
				require.Equal(r, models.RunCancelled, run.Status)
				require.Empty(r, r.agent(*run.BoxID).Commands())
				require.Nil(r, r.box(*run.BoxID).LeaseToken)
				if step == "/ready" {
					requests := r.agent(*run.BoxID).Requests()
					require.Equal(r, "GET /ready", requests[len(requests)-1], "nothing more is asked of the box")
				}
				r.fake.Watch(nil)
				r.settle()
				require.Empty(r, r.fake.Alive())
			})
		})
	}
}

// Fault 3 of the Python service: a command that calls back before its id is stored.
func TestDispatch_CallbackBeforeTheCommandsIDIsStored(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run := r.pending()
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Method == "Inspect" {
				r.agent(c.Workspace).OnStart(func(command *sandboxtest.Command) {
					require.True(r, r.finish(run.ID, models.RunCompleted).Won)
					zero := 0
					command.Stdout, command.Exit = "hello\n", &zero
				})
			}
		})
		r.execute()
		r.fake.Watch(nil)
		run = r.run(run.ID)
		require.Equal(r, models.RunCompleted, run.Status)
		require.NotNil(r, run.BashCommandID, "a fact is stored on a finished run too")
		require.Equal(r, run.CompletedAt.Add(time.Hour), *run.CleanupDueAt)
		r.settle()
		box := r.box(*run.BoxID)
		require.Equal(r, models.SeenSuspended, box.Observed)
		require.Zero(r, *r.run(run.ID).ExitCode)
	})
}

func TestRunThatExitsASecondAfterItsCallbackKeepsItsOutput(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run := r.pending()
		r.execute()
		run = r.run(run.ID)
		agent, command := r.agent(*run.BoxID), *run.BashCommandID
		for n := range 99 {
			agent.Print(command, fmt.Sprintf("line %d\n", n))
		}
		require.True(r, r.finish(run.ID, models.RunFailed).Won)
		go func() {
			<-time.After(time.Second)
			agent.Print(command, "line 99\n")
			agent.Exit(command, 4)
		}()
		r.settler.Settings.ExitGrace = 10 * time.Second
		r.settle()
		run = r.run(run.ID)
		require.Equal(r, 4, *run.ExitCode)
		stored := r.blobs.get(*run.OutputKey)
		require.Contains(r, stored, `"exit_code":4`)
		text := decoded(r.T, stored)
		require.Equal(r, 100, strings.Count(text, "\n"))
		require.True(r, strings.HasSuffix(text, "line 99\n"))
		require.Equal(r, models.SeenSuspended, r.box(*run.BoxID).Observed)
	})
}

func TestDispatch_StartWhoseAnswerWasLostIsNotRepeated(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run := r.pending()
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Method == "Inspect" {
				r.agent(c.Workspace).LoseStarts()
			}
		})
		r.execute()
		run = r.run(run.ID)
		require.Equal(r, models.RunRunning, run.Status, "check_at or the callback decide")
		require.Nil(r, run.BashCommandID)
		require.Len(r, r.agent(*run.BoxID).Commands(), 1)
		r.clock.Advance(2 * leaseTime)
		n, err := r.dispatch.pass(r.Context())
		require.NoError(r, err)
		require.Zero(r, n)
		require.Len(r, r.agent(*run.BoxID).Commands(), 1)
	})
}

func TestDispatch_RefusedStartFailsTheRun(t *testing.T) {
	for _, status := range []int{400, 500} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			one(t, sandboxtest.Quirks{}, func(r *rig) {
				run := r.pending()
				r.fake.Watch(func(c sandboxtest.Call) {
					if c.Method == "Inspect" {
						r.agent(c.Workspace).Fail("/api/bash/start_bash_command", status)
					}
				})
				r.execute()
				run = r.run(run.ID)
				require.Equal(r, models.RunFailed, run.Status)
				require.Contains(r, *run.ErrorDetail, "Failed to start the command")
				require.Equal(r, "execution_error", r.detail(run).Kind)
				require.Equal(r, models.WantDeleted, r.box(*run.BoxID).Desired, "its command was not started: deleted at once")
			})
		})
	}
}

func TestDispatch_LocalModeHasNoBox(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		// A box of the fake serves as the shared agent server.
		shared := sandbox.Identity{}
		err := r.fake.Create(r.Context(), sandbox.Spec{Label: sandbox.Label{WorkspaceID: uuid.New()}}, func(i sandbox.Identity) error { shared = i; return nil })
		require.NoError(r, err)
		r.dispatch.Backend, r.dispatch.Place = nil, models.Place{}
		r.dispatch.Local = LocalMode{
			URL: shared.URL, Key: "agent-secret", InnerURL: "http://inner.test", WorkspaceBase: "/workspace", CallbackKey: "local-secret",
		}
		r.dispatch.Local.Key = secret(shared.Key)
		run := r.pending()
		r.execute()
		run = r.run(run.ID)
		require.Equal(r, models.RunRunning, run.Status)
		require.Nil(r, run.BoxID)
		work := localWorkspace(run.ID, "/workspace")
		agent := r.agents.Box(shared.ProviderID)
		require.Equal(r, startCommand(work, "bash run.sh"), agent.Commands()[0].Text)
		env := agent.Uploaded(work.env())
		require.Contains(r, env, "export AUTOMATION_CALLBACK_API_KEY='local-secret'\n")
		require.Contains(r, env, "export AGENT_SERVER_URL='http://inner.test'\n")
		require.Contains(r, env, "export WORKSPACE_BASE='/workspace/automation-runs/"+run.ID.String()+"'\n")
		require.Equal(r, 1, r.fake.Count("Create"), "no box is made for the run")

		f := r.finish(run.ID, models.RunFailed)
		require.True(r, f.Won)
		require.Nil(r, r.run(run.ID).CleanupDueAt, "S1-053: never stamped")
	})
}

func TestDispatch_AtMostSoManyInFlight(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		r.dispatch.Settings.MaxInFlight = 3
		r.dispatch.Settings.Interval = 50 * time.Millisecond
		var holds []*sandboxtest.Hold
		for range 3 {
			holds = append(holds, r.fake.Hold("Create"))
		}
		var runs []*models.Run
		for range 5 {
			runs = append(runs, r.pending())
		}
		ctx, cancel := context.WithCancel(r.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- loop.Run(ctx, r.dispatch.Log, r.dispatch.Loop()) }()
		for _, h := range holds {
			<-h.Entered
		}
		waiting := 0
		for _, run := range runs {
			if r.run(run.ID).Status == models.RunPending {
				waiting++
			}
		}
		require.Equal(r, 2, waiting, "no more are claimed than there are free workers")
		for _, h := range holds {
			h.Release()
		}
		require.Eventually(r, func() bool {
			for _, run := range runs {
				if r.run(run.ID).BashCommandID == nil {
					return false
				}
			}
			return true
		}, 20*time.Second, 20*time.Millisecond)
		cancel()
		require.NoError(r, <-stopped)
		require.Equal(r, 5, r.fake.Count("Create"))
	})
}

func TestDispatch_StoppingGivesTheRunBack(t *testing.T) {
	each(t, sandboxtest.Quirks{SlowCreate: 1 << 30}, func(r *rig) {
		run := r.pending()
		ctx, cancel := context.WithCancel(r.Context())
		looked := make(chan struct{}, 1000)
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Method == "Inspect" {
				looked <- struct{}{}
			}
		})
		done := make(chan error, 1)
		go func() { _, err := r.dispatch.pass(ctx); done <- err }()
		<-looked
		cancel()
		require.NoError(r, <-done)
		require.Equal(r, models.RunRunning, r.run(run.ID).Status, "our stopping says nothing about the run")
		lost := r.box(*r.run(run.ID).BoxID)
		require.Nil(r, lost.LeaseToken)

		r.fake.Watch(nil)
		r.fake.Quirks.SlowCreate = 0
		r.execute()
		run = r.run(run.ID)
		require.NotNil(r, run.BashCommandID)
		require.NotEqual(r, lost.ID, *run.BoxID)
		require.Equal(r, models.WantDeleted, r.box(lost.ID).Desired)
	})
}

func TestDispatch_TwoProcessesClaimEachRunOnce(t *testing.T) {
	db := modelstest.NewPostgres(t)
	r := newRig(t, db, sandboxtest.Quirks{})
	const runs = 20
	for range runs {
		r.pending()
	}
	other, _ := r.duties(db.Open(t, models.WithClock(r.clock.Now)))
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 2)
	for _, d := range []*Dispatch{r.dispatch, other} {
		d.Settings.MaxInFlight, d.Settings.Interval = 4, 100*time.Millisecond
		go func() { stopped <- loop.Run(ctx, d.Log, d.Loop()) }()
	}
	require.Eventually(t, func() bool {
		for _, run := range r.runs(r.auto) {
			if run.BashCommandID == nil {
				return false
			}
		}
		return true
	}, 40*time.Second, 50*time.Millisecond)
	cancel()
	require.NoError(t, <-stopped)
	require.NoError(t, <-stopped)
	require.Equal(t, runs, r.fake.Count("Create"))
	for _, run := range r.runs(r.auto) {
		require.Equal(t, 1, run.Attempt)
		require.Len(t, r.agent(*run.BoxID).Commands(), 1)
	}
}
