package backend

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
	"automation/tests/cloudstub"
)

// faults are what a provider may answer, and what the answer is to us.
var faults = []struct {
	name  string
	fault cloudstub.Fault
	is    error // nil: none of the named errors, so it is retried
}{
	{"401", cloudstub.Fault{Status: 401}, sandbox.ErrRefused},
	{"403", cloudstub.Fault{Status: 403}, sandbox.ErrRefused},
	{"404", cloudstub.Fault{Status: 404}, sandbox.ErrGone},
	{"409", cloudstub.Fault{Status: 409}, sandbox.ErrBusy},
	{"422", cloudstub.Fault{Status: 422}, sandbox.ErrInvalid},
	{"429, Retry-After 0", after("0"), nil},
	{"429, Retry-After a date", after(time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC).Format("Mon, 02 Jan 2006 15:04:05 GMT")), nil},
	{"429, Retry-After 1000000000", after("1000000000"), nil},
	{"429, Retry-After garbage", after("soon"), nil},
	{"500", cloudstub.Fault{Status: 500}, nil},
	{"hang", cloudstub.Fault{Hang: true}, nil},
	{"reset", cloudstub.Fault{Reset: true}, nil},
	{"HTML", cloudstub.Fault{Body: "<html>maintenance</html>"}, nil},
	{"empty", cloudstub.Fault{}, nil},
	{"slow body", cloudstub.Fault{Slow: true, Body: `[{"id":`}, nil},
}

func after(value string) cloudstub.Fault {
	return cloudstub.Fault{Status: 429, Header: map[string]string{"Retry-After": value}}
}

// named are the errors that callers decide on.
var named = []error{sandbox.ErrGone, sandbox.ErrBusy, sandbox.ErrRefused, sandbox.ErrInvalid, sandbox.ErrQuota}

func requireError(t *testing.T, err, is error) {
	t.Helper()
	require.Error(t, err)
	for _, e := range named {
		if e == is { //nolint:errorlint // sentinels of a table
			require.ErrorIs(t, err, e)
		} else {
			require.NotErrorIs(t, err, e)
		}
	}
}

func TestEveryFaultOnEveryOperationIsClassedAndNothingIsLostByIt(t *testing.T) {
	for _, f := range faults {
		for op, do := range map[string]func(context.Context, *cloud, sandbox.Ref) error{
			"get": func(ctx context.Context, c *cloud, ref sandbox.Ref) error {
				_, err := c.Inspect(ctx, ref)
				return err
			},
			"pause":  func(ctx context.Context, c *cloud, ref sandbox.Ref) error { return c.Suspend(ctx, ref, accept) },
			"resume": func(ctx context.Context, c *cloud, ref sandbox.Ref) error { return c.Resume(ctx, ref, accept) },
			"delete": func(ctx context.Context, c *cloud, ref sandbox.Ref) error { return c.Delete(ctx, ref) },
		} {
			t.Run(op+" "+f.name, func(t *testing.T) {
				t.Parallel()
				c := newCloud(t, nil)
				ref := c.box(t)
				c.stub.FailAlways(op, f.fault)
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				err := do(ctx, c, ref)
				calls := len(c.stub.Calls(op))
				if op == "get" {
					calls-- // that of box
				}
				twice := f.fault.Status == 401 || f.fault.Status == 403 || f.fault.Reset && op == "get"
				require.LessOrEqual(t, calls, map[bool]int{false: 1, true: 2}[twice], "no storm: one call, and one more with a fresh key or connection")
				require.Len(t, c.stub.Alive(), 1, "the box is not lost")
				bodyless := f.fault.Status == 0 && !f.fault.Hang && !f.fault.Reset && op != "get"
				switch {
				case bodyless && op == "delete": // it says that it is done, and the box is shown
					requireError(t, err, sandbox.ErrBusy)
				case bodyless: // accepted: what counts is what Inspect shows next
					require.NoError(t, err)
				case f.fault.Status == 404 && op == "resume": // a running box runs: nothing was to be done
					require.NoError(t, err)
				case f.fault.Status == 404 && op != "delete": // proves nothing
					requireError(t, err, nil)
				case f.fault.Status == 409 && op == "get":
					requireError(t, err, sandbox.ErrInvalid)
				default:
					requireError(t, err, f.is)
				}
			})
		}
	}
}

func TestEveryFaultOnACreateMakesNoSecondBox(t *testing.T) {
	for _, f := range faults {
		for _, done := range []bool{false, true} { // the box is made, and only the answer is lost
			name := f.name
			if done {
				name += ", made all the same"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := newCloud(t, nil)
				fault := f.fault
				fault.Done = done
				c.stub.FailAlways("create", fault)
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				err := c.Create(ctx, sandbox.Spec{Owner: c.owner}, func(sandbox.Identity) error {
					t.Error("nothing was named")
					return nil
				})
				calls, definite := len(c.stub.Calls("create")), sandbox.ErrInvalid
				switch f.fault.Status {
				case 401, 403:
					definite = sandbox.ErrRefused
					require.Equal(t, 2, calls)
				case 429:
					definite = sandbox.ErrNotMade
					require.LessOrEqual(t, calls, 5)
				case 404, 409, 422:
					require.Equal(t, 1, calls)
				default:
					require.Equal(t, 1, calls, "what may have been made is not asked for again")
					requireError(t, err, nil)
					require.NotErrorIs(t, err, sandbox.ErrNotMade, "it is looked for")
					return
				}
				require.ErrorIs(t, err, definite)
				require.NotErrorIs(t, err, sandbox.ErrGone)
			})
		}
	}
}

func TestS1_048_S1_049_S1_050_S1_051_WhatThePausedAndTheDeletedBoxStillGiveIsToldAsData(t *testing.T) {
	require.True(t, openhandsCan.CanSuspend(), "S1-048: a paused box takes no place among the running ones")
	require.True(t, openhandsCan.KeepsHistory, "S1-049: the conversation stays, so that nothing is exported before a delete")
	require.Equal(t, sandbox.Timer{Supported: true, Action: "delete", Default: 60 * day}, openhandsCan.NativeExpiry, "S1-050: the provider deletes first when the delay is longer")

	c := newCloud(t, nil)
	ref := c.box(t)
	require.NoError(t, c.Suspend(t.Context(), ref, accept))
	c.stub.Set(idOf(ref), "RUNNING") // S1-051: somebody resumes it at the web UI
	obs, err := c.Inspect(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, models.SeenRunning, obs.State)
	require.NotEmpty(t, obs.Identity.Key)
	c.stub.Vanish(idOf(ref)) // S1-050: the provider was first
	require.ErrorIs(t, c.Delete(t.Context(), ref), sandbox.ErrGone)
}
