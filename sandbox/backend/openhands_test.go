package backend

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/config"
	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
	"automation/tests/cloudstub"
)

// cloud is the backend against a stub.
type cloud struct {
	*openhands
	stub  *cloudstub.Stub
	clock *modelstest.Clock
	owner sandbox.Owner
}

var aliceOwner = sandbox.Owner{OrgID: uuid.MustParse(cloudstub.Org), UserID: uuid.MustParse(cloudstub.Alice)}

func newCloud(t *testing.T, keys KeyStore, change ...func(*config.Config)) *cloud {
	t.Helper()
	stub := cloudstub.New(t)
	return cloudOn(t, stub, keys, change...)
}

func cloudOn(t *testing.T, stub *cloudstub.Stub, keys KeyStore, change ...func(*config.Config)) *cloud {
	t.Helper()
	c := config.Default(t.TempDir())
	c.Auth.ServiceKey, c.Sandbox.APIBaseURL = cloudstub.ServiceKey, stub.URL+"/"
	c.Dispatch.RateLimitMinWait, c.Dispatch.RateLimitMaxWait = 0, 5*time.Millisecond
	for _, f := range change {
		f(&c)
	}
	clock := modelstest.NewClock()
	b, err := New(openhandsName, Deps{Config: c, Keys: keys, Now: clock.Now}, nil)
	require.NoError(t, err)
	own := b.(*openhands)
	t.Cleanup(own.api.http.CloseIdleConnections)
	return &cloud{openhands: own, stub: stub, clock: clock, owner: aliceOwner}
}

func accept(sandbox.Identity) error { return nil }

// box makes a running box of alice's.
func (c *cloud) box(t *testing.T) sandbox.Ref {
	t.Helper()
	ref := sandbox.Ref{WorkspaceID: uuid.New(), Owner: c.owner}
	require.NoError(t, c.Create(t.Context(), sandbox.Spec{Owner: c.owner}, func(i sandbox.Identity) error {
		ref.Identities = append(ref.Identities, i)
		return nil
	}))
	obs, err := c.Inspect(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, models.SeenRunning, obs.State)
	return ref
}

func idOf(ref sandbox.Ref) string { return ref.Identities[0].ProviderID }

func TestOpenHandsKeepsThePromisesOfABackend(t *testing.T) {
	sandboxtest.Exercise(t, func(t *testing.T) sandboxtest.Subject { return sandboxtest.Subject{Backend: newCloud(t, nil)} })
}

func TestS1_032_S1_040_S1_045_CallsAreMadeWithTheOwnersOwnKey(t *testing.T) {
	c := newCloud(t, nil)
	ref := c.box(t)
	require.NoError(t, c.Suspend(t.Context(), ref, accept))
	require.NoError(t, c.Resume(t.Context(), ref, accept))
	require.NoError(t, c.Delete(t.Context(), ref))
	id := idOf(ref)
	var lines []string
	for _, call := range c.stub.Calls() {
		lines = append(lines, call.Method+" "+call.URL+" "+call.Auth+" "+call.Body)
	}
	const key = " Authorization: Bearer sk-stub-alice-1 "
	require.Equal(t, []string{
		"POST /api/service/users/" + cloudstub.Alice + "/orgs/" + cloudstub.Org + `/api-keys X-Service-API-Key {"name":"automation"}`,
		"POST /api/v1/sandboxes" + key,
		"GET /api/v1/sandboxes?id=" + id + key,
		"POST /api/v1/sandboxes/" + id + "/pause" + key,
		"POST /api/v1/sandboxes/" + id + "/resume" + key,
		"DELETE /api/v1/sandboxes/" + id + "?sandbox_id=" + id + key, // the id in path and query
		"GET /api/v1/sandboxes?id=" + id + key,
	}, lines, "a slash at the end of the base URL doubles none, bodies are empty, one key is minted")
}

func TestS1_041_S1_042_S1_043_S1_062_APauseIsAcceptedOrFailsOrdinarily(t *testing.T) {
	for name, c := range map[string]struct {
		fault cloudstub.Fault
		set   string // state of the box before
		want  error  // nil: accepted
		plain bool   // an error that is none of the named ones: retried
	}{
		"200":                                {},
		"404, and it is gone":                {set: "gone", want: sandbox.ErrGone},
		"404 of a failing upstream":          {fault: cloudstub.Fault{Status: 404}, plain: true},
		"404 of a box that is paused":        {fault: cloudstub.Fault{Status: 404}, set: "PAUSED"},
		"404 of a box whose runtime stopped": {fault: cloudstub.Fault{Status: 404}, set: "MISSING", want: sandbox.ErrGone},
		"409":                                {fault: cloudstub.Fault{Status: 409}, want: sandbox.ErrBusy},
		"302":                                {fault: cloudstub.Fault{Status: 302, Header: map[string]string{"Location": "/elsewhere"}}, plain: true},
		"transport failure":                  {fault: cloudstub.Fault{Reset: true}, plain: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newCloud(t, nil)
			ref := b.box(t)
			switch c.set {
			case "":
			case "gone":
				b.stub.Vanish(idOf(ref))
			default:
				b.stub.Set(idOf(ref), c.set)
			}
			if c.fault.Status != 0 || c.fault.Reset {
				b.stub.Fail("pause", c.fault)
			}
			err := b.Suspend(t.Context(), ref, accept)
			switch {
			case c.plain:
				require.Error(t, err)
				for _, named := range []error{sandbox.ErrGone, sandbox.ErrBusy, sandbox.ErrRefused, sandbox.ErrInvalid, sandbox.ErrQuota} {
					require.NotErrorIs(t, err, named)
				}
			case c.want != nil:
				require.ErrorIs(t, err, c.want)
			default:
				require.NoError(t, err)
			}
			require.Len(t, b.stub.Calls("pause"), 1)
			require.Empty(t, b.stub.Calls("other"), "no redirect is followed")
		})
	}
}

func TestS1_043_S1_044_ACallThatHangsEndsAfterThirtySeconds(t *testing.T) {
	require.Equal(t, 30*time.Second, lifecycleWithin)
	c := newCloud(t, nil)
	ref := c.box(t)
	c.stub.FailAlways("pause", cloudstub.Fault{Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := c.Suspend(ctx, ref, accept)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	kind, _ := sandbox.Passing(err)
	require.Equal(t, "timeout", kind)
}

func TestS1_035_A404OfADeleteProvesNothing(t *testing.T) {
	require.True(t, openhandsCan.FalseGone, "the settler looks again")
	c := newCloud(t, nil)
	ref := c.box(t)
	c.stub.Fail("delete", cloudstub.Fault{Status: 404})
	require.ErrorIs(t, c.Delete(t.Context(), ref), sandbox.ErrGone)
	obs, err := c.Inspect(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, models.SeenRunning, obs.State, "and finds the box")

	c.stub.Vanish(idOf(ref))
	require.ErrorIs(t, c.Delete(t.Context(), ref), sandbox.ErrGone)
	_, err = c.Inspect(t.Context(), ref)
	require.ErrorIs(t, err, sandbox.ErrGone)
}

func TestADeleteThatIsAcceptedIsDoneWhenTheBoxIsNotShown(t *testing.T) {
	c := newCloud(t, nil)
	ref := c.box(t)
	c.stub.Fail("delete", cloudstub.Fault{Body: `{"success":true}`}) // says so, and does nothing
	require.ErrorIs(t, c.Delete(t.Context(), ref), sandbox.ErrBusy)
	require.NoError(t, c.Delete(t.Context(), ref))
	require.Empty(t, c.stub.Alive())
}

func TestTheStatusOfABoxIsMapped(t *testing.T) {
	c := newCloud(t, nil)
	ref := c.box(t)
	for status, want := range openhandsStates {
		if status == "STARTING" {
			continue // the stub leaves it by itself
		}
		c.stub.Set(idOf(ref), status)
		obs, err := c.Inspect(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, want, obs.State, status)
		running := want == models.SeenRunning
		require.Equal(t, running, obs.Identity.Key != "", "key and address are null while it is %s", status)
		require.Equal(t, running, obs.Identity.URL != "", status)
	}
	c.stub.Set(idOf(ref), "HIBERNATING")
	_, err := c.Inspect(t.Context(), ref)
	require.ErrorContains(t, err, "HIBERNATING")
	require.NotErrorIs(t, err, sandbox.ErrGone, "a word that is not known says nothing")
}

func TestS1_047_KeyAndAddressAreReadAnewAfterAResume(t *testing.T) {
	c := newCloud(t, nil)
	ref := c.box(t)
	before, err := c.Inspect(t.Context(), ref)
	require.NoError(t, err)
	require.NoError(t, c.Suspend(t.Context(), ref, accept))
	require.NoError(t, c.Resume(t.Context(), ref, accept))
	after, err := c.Inspect(t.Context(), ref)
	require.NoError(t, err)
	require.NotEqual(t, before.Identity.Key, after.Identity.Key)
	require.NotEmpty(t, after.Identity.Key)
}

func TestAProvidersWordsOnAFailedBoxAreReducedToTheirClass(t *testing.T) {
	c := newCloud(t, nil)
	c.stub.Broken(`Back-off pulling image "registry.corp/secret:1": ErrImagePull`)
	ref := sandbox.Ref{Owner: c.owner}
	require.NoError(t, c.Create(t.Context(), sandbox.Spec{Owner: c.owner}, func(i sandbox.Identity) error {
		ref.Identities = append(ref.Identities, i)
		return nil
	}))
	obs, err := c.Inspect(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, models.SeenFailed, obs.State)
	require.Equal(t, "image_pull_error", obs.Detail)
}

func TestAQuotaIsToldFromAPlain429(t *testing.T) {
	for name, body := range map[string]string{
		"concurrency":    `{"detail":{"error":"CONCURRENCY_LIMIT_REACHED","message":"3 of 3"}}`,
		"daily":          `{"detail":{"error":"DAILY_SANDBOX_LIMIT_REACHED","message":"x"}}`,
		"without detail": `{"error":"CONCURRENCY_LIMIT_REACHED","message":"x"}`,
	} {
		c := newCloud(t, nil)
		c.stub.FailAlways("create", cloudstub.Fault{Status: 429, Body: body})
		err := c.Create(t.Context(), sandbox.Spec{Owner: c.owner}, accept)
		require.ErrorIs(t, err, sandbox.ErrQuota, name)
		require.Equal(t, name == "daily", strings.Contains(strings.ToLower(err.Error()), "daily"), name)
		require.Len(t, c.stub.Calls("create"), 1, name)
	}
	c := newCloud(t, nil)
	c.stub.FailAlways("create", cloudstub.Fault{Status: 429})
	err := c.Create(t.Context(), sandbox.Spec{Owner: c.owner}, accept)
	require.NotErrorIs(t, err, sandbox.ErrQuota)
	require.ErrorIs(t, err, sandbox.ErrNotMade)
	kind, status := sandbox.Passing(err)
	require.Equal(t, "rate_limited", kind)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Len(t, c.stub.Calls("create"), 5, "AUTOMATION_RATE_LIMIT_MAX_RETRIES")
}

func TestAPlain429WaitsAsLongAsItIsTold(t *testing.T) {
	for value, calls := range map[string]int{"0": 2, "garbage": 2, "-5": 2, "1": 2, "1000000000": 1, "3600": 1} {
		c := newCloud(t, nil)
		c.stub.Fail("create", cloudstub.Fault{Status: 429, Header: map[string]string{"Retry-After": value}})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		started := time.Now()
		err := c.Create(ctx, sandbox.Spec{Owner: c.owner}, accept)
		cancel()
		require.Len(t, c.stub.Calls("create"), calls, "Retry-After: %s", value)
		if calls == 1 { // it would wait past its own end: it does not
			require.ErrorIs(t, err, sandbox.ErrNotMade)
			require.Less(t, time.Since(started), 2*time.Second)
			require.Equal(t, time.Hour, sandbox.RetryAfter(err), "bounded")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, value == "1", time.Since(started) >= time.Second, "Retry-After: %s", value)
	}
}

func TestRetryAfterIsReadAsSecondsOrDate(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "\t7": 7 * time.Second, "-1": 0, "1e3": 0, "soon": 0,
		"1000000000": time.Hour, "99999999999999999999": 0,
		now.Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second,
		now.Add(-time.Hour).Format(http.TimeFormat):       0,
		now.AddDate(10, 0, 0).Format(http.TimeFormat):     time.Hour,
	} {
		require.Equal(t, want, retryAfter(value, now), value)
	}
}

func TestAnErrorNamesTheRequestAndNoSecret(t *testing.T) {
	c := newCloud(t, nil)
	ref := c.box(t)
	c.stub.Fail("pause", cloudstub.Fault{Status: 500, Body: "<html>\n  who sent sk-stub-alice-1? " + strings.Repeat("x", 5000)})
	err := c.Suspend(t.Context(), ref, accept)
	require.ErrorContains(t, err, "req-of-the-stub")
	require.ErrorContains(t, err, "pause")
	require.NotContains(t, err.Error(), "sk-stub")
	require.Less(t, len(err.Error()), 700)
	c.stub.FailAlways("mint", cloudstub.Fault{Status: 500, Body: cloudstub.ServiceKey})
	_, err = c.Inspect(t.Context(), sandbox.Ref{Owner: sandbox.Owner{UserID: uuid.New()}, Identities: ref.Identities})
	require.ErrorContains(t, err, "500")
	require.NotContains(t, err.Error(), cloudstub.ServiceKey)
}

func TestABackendWithoutAServiceKeyIsNotConfigured(t *testing.T) {
	_, err := New(openhandsName, Deps{Config: config.Default(t.TempDir())}, nil)
	require.ErrorContains(t, err, "AUTOMATION_SERVICE_KEY")
}

func TestWhatIsMadeWhileWeStopIsDeleted(t *testing.T) {
	c := newCloud(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	stopping := errors.New("stopping")
	err := c.Create(ctx, sandbox.Spec{Owner: c.owner}, func(sandbox.Identity) error {
		cancel()
		return stopping
	})
	require.ErrorIs(t, err, stopping)
	require.Empty(t, c.stub.Alive())
}
