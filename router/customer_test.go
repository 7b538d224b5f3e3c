package router_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/customer"
	"automation/models/modelstest"
	"automation/router"
	"automation/session"
)

// crew is an Agents whose sessions are rows only.
type crew struct {
	store          *customer.Store
	err            error
	starts, stops  atomic.Int64
	lines          []string // that every reader gets
	readErr        error    // after them
	reading        chan session.Reading
	mayCreatorHave func() ([]string, error)
}

func (c *crew) Start(ctx context.Context, box *models.Sandbox, who string) (*customer.Session, error) {
	c.starts.Add(1)
	if c.err != nil {
		return nil, c.err
	}
	return c.store.StartSession(ctx, box.OrgID, box.ID, who)
}

func (c *crew) Stop(ctx context.Context, box *models.Sandbox) (*customer.Session, error) {
	c.stops.Add(1)
	return c.store.StopSession(ctx, box.ID)
}

func (c *crew) Read(_ context.Context, what session.Reading, write func([]byte) error) error {
	if c.reading != nil {
		c.reading <- what
	}
	if c.readErr != nil && len(c.lines) == 0 {
		return c.readErr
	}
	for _, line := range append([]string{""}, c.lines...) {
		if err := write([]byte(line)); err != nil {
			return err
		}
	}
	return c.readErr
}

// office is a world with customers: one sandbox of alice in org, agents on.
type office struct {
	*world
	crew  *crew
	store *customer.Store
	box   *models.Sandbox
}

func newOffice(t *testing.T, w *world, c *crew) *office {
	t.Helper()
	_, box := w.running(w.automation(func(a *models.Automation) { a.UserID = alice }))
	require.NoError(t, c.store.SwitchAgents(t.Context(), org, box.ID, true, "test"))
	return &office{world: w, crew: c, store: c.store, box: w.box(box.ID)}
}

// customers runs test on both dialects.
func customers(t *testing.T, test func(o *office), configure ...func(*router.Customers)) {
	t.Helper()
	c := &crew{}
	each(t, func(t *testing.T, w *world) {
		*c = crew{store: c.store}
		test(newOffice(t, w, c))
	}, func(d *router.Deps) {
		c.store = customer.New(d.Store)
		d.Customers = router.Customers{Store: c.store, Agents: c, Creator: func(_ context.Context, _, user uuid.UUID) ([]string, error) {
			if c.mayCreatorHave != nil {
				return c.mayCreatorHave()
			}
			return []string{"view_automations", "manage_automations"}, nil
		}}
		for _, change := range configure {
			change(&d.Customers)
		}
	})
}

func (o *office) path(more string) string {
	return "/v1/customer/tenants/" + org.String() + "/sandboxes/" + o.box.ID.String() + "/agent" + more
}

// key makes a key with permissions.
func (o *office) key(permissions ...string) string {
	o.t.Helper()
	made := o.call("tok-alice", "POST", "keys", map[string]any{"name": "k", "permissions": permissions}).is(http.StatusCreated)
	return made["key"].(string)
}

// output is a well-formed question for the present session, or for one that never was.
func (o *office) output() string {
	id := "sxe_000000000000000000000000"
	if present, err := o.store.NewestSession(o.t.Context(), o.box.ID); err == nil {
		id = present.ID
	}
	return o.path("/output?session_id=" + id)
}

func code(a answer) string {
	body, _ := a.json()["error"].(map[string]any)
	text, _ := body["code"].(string)
	return text
}

func TestS2_003_S2_004_S2_005_S2_006_S2_011_S2_012_S2_018_S2_030_S2_048_ThePermissionMatrix(t *testing.T) {
	const refused, fine, none = http.StatusForbidden, 0, http.StatusUnauthorized
	customers(t, func(o *office) {
		o.call("tok-alice", "POST", o.path(""), nil).is(http.StatusAccepted) // there is something to read
		expiring := o.call("tok-alice", "POST", "keys", map[string]any{"name": "k", "permissions": []string{"all:all"}, "expires_in_seconds": 60}).is(http.StatusCreated)["key"].(string)
		revoked := o.call("tok-alice", "POST", "keys", map[string]any{"name": "gone", "permissions": []string{"all:all"}}).is(http.StatusCreated)
		o.call("tok-alice", "DELETE", "keys/"+revoked["id"].(string), nil).is(http.StatusNoContent)
		o.clock.Advance(61 * time.Second)
		demoted := o.call("tok-alice", "POST", "keys", map[string]any{"name": "k", "permissions": []string{"all:all"}}).is(http.StatusCreated)["key"].(string)
		rows := []struct {
			who                      string
			credential               string
			get, post, delete, lines int
		}{
			{"nothing", "", none, none, none, none},
			{"unknown", "wak_unknown", none, none, none, none},
			{"unknown login", "tok-unknown", none, none, none, none},
			{"expired", expiring, none, none, none, none},
			{"revoked", revoked["key"].(string), none, none, none, none},
			{"no sandbox permission", o.key("automations:read"), refused, refused, refused, refused},
			{"sandboxes:read", o.key("sandboxes:read"), fine, refused, refused, fine},
			{"sandboxes:write", o.key("sandboxes:write"), fine, fine, fine, fine},
			{"both", o.key("sandboxes:read", "sandboxes:write"), fine, fine, fine, fine},
			{"all:all", o.key("all:all"), fine, fine, fine, fine},
			{"legacy scope", o.key("sandbox:read", "sandbox:write", "sandboxes"), refused, refused, refused, refused},
			{"repository grant", o.key("repositories:write", "repositories:octo/demo"), refused, refused, refused, refused},
			{"access token of the creator", "tok-alice", fine, fine, fine, fine},
			{"access token of another who may only see", "tok-bob", fine, refused, refused, fine},
			{"access token that may nothing", "tok-nobody", refused, refused, refused, refused},
			{"token of a run", o.world.store.MintRunToken(*o.box.RunID, o.world.store.Now().Add(time.Hour)), refused, refused, refused, refused},
			{"access token of another tenant", "tok-eve", refused, refused, refused, refused},
			{"all:all of a creator who lost it", demoted, refused, refused, refused, refused},
		}
		for _, row := range rows {
			o.crew.mayCreatorHave = nil
			if row.credential == demoted {
				o.crew.mayCreatorHave = func() ([]string, error) { return nil, nil }
			}
			want := func(got answer, status, otherwise int) {
				o.t.Helper()
				if status == fine {
					status = otherwise
				}
				require.Equal(o.t, status, got.Code, "%s: %s", row.who, got.Body)
				if status == none {
					require.Equal(o.t, "Bearer", got.Header().Get("WWW-Authenticate"))
				}
			}
			want(o.call(row.credential, "GET", o.path(""), nil), row.get, http.StatusOK)
			want(o.call(row.credential, "POST", o.path(""), nil), row.post, http.StatusAccepted)
			want(o.call(row.credential, "GET", o.output(), nil), row.lines, http.StatusOK)
			want(o.call(row.credential, "DELETE", o.path(""), nil), row.delete, http.StatusOK)
		}
		// What the creator gets back, the same key has back at once (S2-006).
		o.crew.mayCreatorHave = nil
		o.call(demoted, "GET", o.path(""), nil).is(http.StatusOK)
	})
}

func TestS2_006_AKeyWhoseCreatorCannotBeLookedUpSaysSo(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("all:all")
		o.crew.mayCreatorHave = func() ([]string, error) { return nil, errors.New("Cloud is down") }
		got := o.call(key, "GET", o.path(""), nil)
		require.Equal(o.t, http.StatusServiceUnavailable, got.Code)
		require.Equal(o.t, "sandboxes_unavailable", code(got))
	})
}

func TestS2_009_S2_010_TheOrderOfTheChecks(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		elsewhere := "/v1/customer/tenants/" + otherOrg.String() + "/sandboxes/" + o.box.ID.String() + "/agent"
		unknown := "/v1/customer/tenants/" + org.String() + "/sandboxes/" + uuid.NewString() + "/agent"
		for _, row := range []struct {
			what, as, method, path string
			status                 int
			code                   string
		}{
			{"a malformed tenant comes before the missing credential", "", "GET", "/v1/customer/tenants/x/sandboxes/" + o.box.ID.String() + "/agent", 400, "invalid_request"},
			{"a malformed sandbox too", "", "GET", "/v1/customer/tenants/" + org.String() + "/sandboxes/..%2fx/agent", 400, "invalid_request"},
			{"a malformed parameter too", "", "GET", o.path("/output?session_id=x"), 400, "invalid_request"},
			{"the credential comes before the tenant", "wak_x", "GET", elsewhere, 401, "unauthorized"},
			{"another tenant is 403, whether it exists or not", key, "GET", elsewhere, 403, "forbidden"},
			{"the permission comes before the sandbox", o.key("x:y"), "GET", unknown, 403, "forbidden"},
			{"an unknown sandbox is 404", key, "GET", unknown, 404, "sandbox_not_found"},
			{"also for POST", key, "POST", unknown, 404, "sandbox_not_found"},
		} {
			got := o.call(row.as, row.method, row.path, nil)
			require.Equal(o.t, row.status, got.Code, "%s: %s", row.what, got.Body)
			require.Equal(o.t, row.code, code(got), row.what)
		}
		require.Zero(o.t, o.crew.starts.Load())
	})
}

func TestS2_013_S2_016_S2_017_S2_038_S2_039_S2_040_S2_041_S2_044_S2_045_BeforeAnythingWasStartedTheAgentIsIdle(t *testing.T) {
	customers(t, func(o *office) {
		before := o.box
		got := o.call(o.key("sandboxes:read"), "GET", o.path(""), nil).is(http.StatusOK)
		require.Equal(o.t, map[string]any{
			"enabled": true, "status": "idle", "session_id": nil, "exit_code": nil, "reason": "", "tasks_available": false,
			"task_unavailable_reason": "permission_required", "readiness": "unverified", "updated_at": nil,
		}, got)
		require.Zero(o.t, o.door.entered.Load(), "nothing is woken or asked")
		require.Equal(o.t, before, o.world.box(o.box.ID), "no access is recorded")
	})
}

func TestS2_045_TheDocumentSaysWhatAnAgentIs(t *testing.T) {
	customers(t, func(o *office) {
		document := o.call("tok-alice", "GET", "openapi.json", nil).is(http.StatusOK)
		at := func(path ...string) map[string]any {
			found := document
			for _, name := range path {
				next, is := found[name].(map[string]any)
				require.True(o.t, is, "%v: there is no %s", path, name)
				found = next
			}
			return found
		}
		agent := at("components", "schemas", "Agent")
		require.Equal(o.t, true, agent["additionalProperties"], "more fields may come")
		got := o.call(o.key("sandboxes:read"), "GET", o.path(""), nil).is(http.StatusOK)
		for name := range got {
			require.Contains(o.t, agent["required"], name)
		}
		require.Len(o.t, agent["required"], len(got))
		properties := agent["properties"].(map[string]any)
		require.Equal(o.t, map[string]any{"type": "string", "enum": []any{"idle", "active", "stopped", "failed"}}, properties["status"])
		require.Equal(o.t, []any{"", "permission_required", "model_proxy_required", "model_limit"}, properties["task_unavailable_reason"].(map[string]any)["enum"])
		require.Equal(o.t, []any{"unverified"}, properties["readiness"].(map[string]any)["enum"])
		const path = "/v1/customer/tenants/{tenantId}/sandboxes/{sandboxId}/agent"
		for method, status := range map[string]string{"get": "200", "post": "202", "delete": "200"} {
			example := at("paths", path, method, "responses", status, "content", "application/json", "example")
			for name := range got {
				require.Contains(o.t, example, name)
			}
			require.Equal(o.t, []any{map[string]any{"bearer": []any{}}}, at("paths", path, method)["security"])
		}
		output := at("paths", path+"/output", "get", "responses", "200", "content", "application/x-ndjson")
		require.Len(o.t, output["schema"].(map[string]any)["oneOf"], 4)
		require.Contains(o.t, output["example"], `"type":"exit"`)
		require.Contains(o.t, at("paths", path, "post")["parameters"], map[string]any{
			"name": "Idempotency-Key", "in": "header", "required": false, "schema": map[string]any{"type": "string", "minLength": 1.0, "maxLength": 255.0},
			"description": "For a day the same request with the same key is answered, not done again",
		})
	})
}

func TestS2_043_WhetherTasksAreAvailableDependsOnTheCaller(t *testing.T) {
	customers(t, func(o *office) {
		got := o.call(o.key("sandboxes:write"), "GET", o.path(""), nil).is(http.StatusOK)
		require.Equal(o.t, true, got["tasks_available"])
		require.Empty(o.t, got["task_unavailable_reason"])
		got = o.call(o.key("sandboxes:read"), "GET", o.path(""), nil).is(http.StatusOK)
		require.Equal(o.t, "permission_required", got["task_unavailable_reason"])
	})
	page, err := os.ReadFile("../docs/API.md")
	require.NoError(t, err)
	for _, never := range []string{"`model_proxy_required`: there,", "`model_limit`: there,"} {
		require.Contains(t, strings.Join(strings.Fields(string(page)), " "), never, "it is said why it cannot be here")
	}
}

func TestS2_019_OnlyAnAbsentOrEmptyObjectIsABody(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		for _, body := range []string{`{"x":1}`, `[]`, `null`, `"a"`, `{`, `1`, "{" + strings.Repeat(" ", 1100) + "}"} {
			require.Equal(o.t, http.StatusBadRequest, o.call(key, "POST", o.path(""), body).Code, body)
		}
		require.Equal(o.t, http.StatusBadRequest, o.call(key, "POST", o.path(""), strings.NewReader("{}"), "Content-Type", "text/plain").Code)
		require.Zero(o.t, o.crew.starts.Load())
		o.call(key, "POST", o.path(""), nil).is(http.StatusAccepted)
		o.call(key, "POST", o.path(""), "{}").is(http.StatusAccepted)
	})
}

func TestS2_020_S2_021_S2_026_S2_029_S2_046_APostAnswersTheSessionThatThereIs(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		ids := make([]string, 20)
		var all sync.WaitGroup
		for i := range ids {
			all.Go(func() {
				got := o.call(key, "POST", o.path(""), nil)
				require.Equal(o.t, o.path(""), got.Header().Get("Location"))
				body := got.is(http.StatusAccepted)
				ids[i] = body["session_id"].(string)
				require.Equal(o.t, "active", body["status"])
				require.Equal(o.t, "queued", body["reason"])
				require.Equal(o.t, "unverified", body["readiness"])
			})
		}
		all.Wait()
		for _, id := range ids {
			require.Equal(o.t, ids[0], id)
			require.Regexp(o.t, `^sxe_[0-9a-f]{24}$`, id)
		}
	})
}

func TestS2_022_S2_023_S2_024_S2_025_WhatKeepsAServerFromStarting(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		before := o.call(key, "GET", o.path(""), nil).Body.String()
		for _, row := range []struct {
			err   error
			code  string
			retry bool
		}{
			{session.ErrNoAgent, "sandbox_agent_unavailable", false},
			{session.ErrNotRunning, "sandbox_exec_unavailable", true},
			{customer.ErrStopping, "sandbox_exec_unavailable", true},
			{models.ErrClosed, "sandboxes_unavailable", true},
			{syscall.ENOSPC, "sandboxes_unavailable", true},
		} {
			o.crew.err = row.err
			got := o.call(key, "POST", o.path(""), nil)
			require.Equal(o.t, http.StatusServiceUnavailable, got.Code)
			require.Equal(o.t, row.code, code(got))
			require.Equal(o.t, row.retry, got.Header().Get("Retry-After") != "")
			require.Equal(o.t, before, o.call(key, "GET", o.path(""), nil).Body.String(), "nothing stays queued")
		}
		starts := o.crew.starts.Load()
		require.NoError(o.t, o.store.SwitchAgents(o.t.Context(), org, o.box.ID, false, "test"))
		got := o.call(key, "POST", o.path(""), nil)
		require.Equal(o.t, "sandbox_agent_unavailable", code(got), "a feature that is off comes before a sandbox that does not run")
		require.Equal(o.t, starts, o.crew.starts.Load())
		require.NoError(o.t, o.store.SwitchAgents(o.t.Context(), org, o.box.ID, true, "test"))
		modelstest.Set(o.t, o.world.store, o.box, "desired = ?", models.WantDeleted)
		o.crew.err = session.ErrNotRunning
		got = o.call(key, "POST", o.path(""), nil)
		require.Equal(o.t, "sandbox_exec_unavailable", code(got))
		require.Empty(o.t, got.Header().Get("Retry-After"), "nobody waits for a sandbox that is deleted")
	})
}

func TestS2_014_S2_015_S2_033_S2_061_WhatStaysWhenTheFeatureIsTurnedOff(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		o.call(key, "POST", o.path(""), nil).is(http.StatusAccepted)
		o.call("tok-alice", "PUT", "sandboxes/"+o.box.ID.String()+"/agent-feature", map[string]any{"enabled": false}).is(http.StatusOK)
		require.Equal(o.t, false, o.call(key, "GET", o.path(""), nil).is(http.StatusOK)["enabled"])
		require.Equal(o.t, http.StatusOK, o.call(key, "GET", o.output(), nil).Code)
		require.Equal(o.t, "stopped", o.call(key, "DELETE", o.path(""), nil).is(http.StatusOK)["status"])
		require.Equal(o.t, http.StatusOK, o.call(key, "GET", o.output(), nil).Code)
	})
}

func TestS2_027_S2_042_S2_063_S2_031_S2_032_S2_034_S2_036_S2_037_Stopping(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		require.Equal(o.t, "idle", o.call(key, "DELETE", o.path(""), nil).is(http.StatusOK)["status"], "none ever ran")
		first := o.call(key, "POST", o.path(""), nil).is(http.StatusAccepted)["session_id"]
		require.Equal(o.t, http.StatusBadRequest, o.call(key, "DELETE", o.path(""), "{}").Code, "a body")
		stopped := o.call(key, "DELETE", o.path(""), nil)
		require.Equal(o.t, "stopped", stopped.is(http.StatusOK)["status"], "one that was queued never starts")
		require.Equal(o.t, "stopped_by_user", stopped.json()["reason"])
		require.Equal(o.t, stopped.Body.String(), o.call(key, "DELETE", o.path(""), nil).Body.String(), "again: the same")
		second := o.call(key, "POST", o.path(""), nil).is(http.StatusAccepted)["session_id"]
		require.NotEqual(o.t, first, second)
		got := o.call(key, "GET", o.path("/output?session_id="+first.(string)), nil)
		require.Equal(o.t, http.StatusConflict, got.Code)
		require.Equal(o.t, "sandbox_agent_session_changed", code(got))
	})
}

func TestS2_026_S2_028_TheSameIdempotencyKeyStartsOnce(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		first := o.call(key, "POST", o.path(""), nil, "Idempotency-Key", "one").is(http.StatusAccepted)["session_id"]
		o.call(key, "DELETE", o.path(""), nil).is(http.StatusOK)
		repeated := o.call(key, "POST", o.path(""), nil, "Idempotency-Key", "one")
		again := repeated.is(http.StatusAccepted)["session_id"]
		require.Equal(o.t, first, again)
		require.EqualValues(o.t, 1, o.crew.starts.Load())
		require.Equal(o.t, o.path(""), repeated.Header().Get("Location"), "S2-026")
		other := o.call(key, "POST", o.path(""), "{}", "Idempotency-Key", "one")
		require.Equal(o.t, http.StatusUnprocessableEntity, other.Code)
		require.Empty(o.t, other.Header().Get("Location"))
		require.NoError(o.t, o.store.SwitchAgents(o.t.Context(), org, o.box.ID, false, "test"))
		o.call(key, "POST", o.path(""), nil, "Idempotency-Key", "one").is(http.StatusAccepted)
		require.Equal(o.t, http.StatusServiceUnavailable, o.call(key, "POST", o.path(""), nil, "Idempotency-Key", "two").Code)
		require.NoError(o.t, o.store.SwitchAgents(o.t.Context(), org, o.box.ID, true, "test"))
		o.call(key, "POST", o.path(""), nil, "Idempotency-Key", "two").is(http.StatusAccepted)
	})
}

func TestS2_049_S2_050_S2_064_WhatTheOutputMayBeAskedFor(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		id := o.call(key, "POST", o.path(""), nil).is(http.StatusAccepted)["session_id"].(string)
		for _, query := range []string{
			"", "session_id=", "session_id=sxe_0", "session_id=" + id + "0", "session_id=" + strings.ToUpper(id), "session_id=sxx_" + id[4:],
			"session_id=sxe_zzzzzzzzzzzzzzzzzzzzzzzz", "session_id=" + id + "&session_id=" + id,
			"session_id=" + id + "&after=-1", "session_id=" + id + "&after=1.5", "session_id=" + id + "&after=abc", "session_id=" + id + "&after=",
			"session_id=" + id + "&after=1&after=2", "session_id=" + id + "&after=9007199254740993", "session_id=" + id + "&after=%2B1",
			"session_id=" + id + "&follow=perhaps",
		} {
			require.Equal(o.t, http.StatusBadRequest, o.call(key, "GET", o.path("/output?"+query), nil).Code, query)
		}
		require.Equal(o.t, http.StatusMethodNotAllowed, o.call(key, "HEAD", o.path("/output?session_id="+id), nil).Code, "S2-071")
	})
}

func TestS2_051_S2_056_S2_059_S2_073_S2_070_S2_071_TheHeadOfAStream(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		o.call(key, "POST", o.path(""), nil).is(http.StatusAccepted)
		o.crew.lines, o.crew.reading = []string{`{"type":"stdout","seq":1,"data":"YQ=="}` + "\n"}, make(chan session.Reading, 1)
		began := time.Now()
		got := o.call(key, "GET", o.output()+"&after=3&follow=false", nil)
		require.Equal(o.t, http.StatusOK, got.Code)
		require.Equal(o.t, "application/x-ndjson", got.Header().Get("Content-Type"))
		require.Equal(o.t, "no-store", got.Header().Get("Cache-Control"))
		require.Equal(o.t, "no", got.Header().Get("X-Accel-Buffering"))
		require.True(o.t, got.Flushed)
		require.Equal(o.t, o.crew.lines[0], got.Body.String())
		what := <-o.crew.reading
		require.EqualValues(o.t, 3, what.After)
		require.False(o.t, what.Follow)
		require.WithinDuration(o.t, began.Add(110*time.Second), what.Until, 2*time.Second)

		o.crew.lines, o.crew.reading, o.crew.readErr = nil, nil, session.ErrTooManyReaders
		got = o.call(key, "GET", o.output(), nil)
		require.Equal(o.t, http.StatusServiceUnavailable, got.Code)
		require.NotEmpty(o.t, got.Header().Get("Retry-After"))
		o.crew.readErr = session.ErrAhead
		require.Equal(o.t, http.StatusBadRequest, o.call(key, "GET", o.output(), nil).Code, "S2-059")
		o.crew.readErr = models.ErrClosed
		require.Equal(o.t, "sandboxes_unavailable", code(o.call(key, "GET", o.output(), nil)), "S2-065")
	})
}

// timed is a writer that remembers until when it may write.
type timed struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (w *timed) SetWriteDeadline(t time.Time) error {
	w.until = t
	return nil
}

func TestS2_056_S2_068_TheEndOfAStreamHasToBeTakenToo(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		o.call(key, "POST", o.path(""), nil).is(http.StatusAccepted)
		w := &timed{ResponseRecorder: httptest.NewRecorder()}
		o.handler.ServeHTTP(w, request(o.t, "GET", o.output(), key))
		require.Equal(o.t, http.StatusOK, w.Code)
		require.WithinDuration(o.t, time.Now().Add(30*time.Second), w.until, 10*time.Second)
	})
}

func TestS2_062_S2_065_OutputOfWhatNeverStarted(t *testing.T) {
	customers(t, func(o *office) {
		got := o.call(o.key("sandboxes:read"), "GET", o.output(), nil)
		require.Equal(o.t, http.StatusNotFound, got.Code)
		require.Equal(o.t, "sandbox_agent_not_started", code(got))
	})
}

func TestS2_067_AnErrorWithinAStreamCutsTheConnection(t *testing.T) {
	customers(t, func(o *office) {
		key := o.key("sandboxes:write")
		o.call(key, "POST", o.path(""), nil).is(http.StatusAccepted)
		o.crew.lines, o.crew.readErr = []string{`{"type":"stdout","seq":1,"data":"YQ=="}` + "\n"}, errors.New("the database is gone")
		require.PanicsWithValue(o.t, http.ErrAbortHandler, func() { o.call(key, "GET", o.output(), nil) })
	})
}

func TestS2_002_KeysAreShownOnceListedAndRevoked(t *testing.T) {
	customers(t, func(o *office) {
		o.clock.Advance(time.Minute)
		made := o.call("tok-alice", "POST", "keys", map[string]any{
			"name": "ci", "kind": "access_token", "tenant": org, "permissions": []string{"sandboxes:read", "sandboxes:read", "sandbox.read"},
		}).is(http.StatusCreated)
		require.Equal(o.t, []any{"sandboxes:read", "sandbox.read"}, made["permissions"])
		require.Equal(o.t, []any{"sandbox.read"}, made["ineffective"])
		secret := made["key"].(string)
		o.call(secret, "GET", o.path(""), nil).is(http.StatusOK)
		list := o.call("tok-alice", "GET", "keys", nil)
		require.EqualValues(o.t, 1, list.is(http.StatusOK)["total"])
		require.NotContains(o.t, list.Body.String(), secret)
		require.NotNil(o.t, list.json()["keys"].([]any)[0].(map[string]any)["last_used_at"])
		var stored []map[string]any
		require.NoError(o.t, modelstest.Of(o.t, o.world.store).Raw().NewSelect().TableExpr("customer_keys AS k").Scan(o.t.Context(), &stored))
		for _, row := range stored {
			for _, value := range row {
				if text, is := value.(string); is {
					require.NotEqual(o.t, secret, text)
				}
			}
		}
		id := made["id"].(string)
		o.call("tok-eve", "DELETE", "keys/"+id, nil).is(http.StatusNotFound)
		o.call("tok-bob", "DELETE", "keys/"+id, nil).is(http.StatusForbidden)
		o.call("tok-alice", "DELETE", "keys/"+id, nil).is(http.StatusNoContent)
		require.Equal(o.t, http.StatusUnauthorized, o.call(secret, "GET", o.path(""), nil).Code)
		require.NotContains(o.t, o.logs.String(), secret)
	})
}

func TestOnlyWhoManagesATenantMakesKeysAndSwitchesAgents(t *testing.T) {
	customers(t, func(o *office) {
		body := map[string]any{"name": "k", "permissions": []string{"all:all"}}
		o.call("tok-bob", "POST", "keys", body).is(http.StatusForbidden)
		o.call("tok-bob", "GET", "keys", nil).is(http.StatusForbidden)
		body["tenant"] = otherOrg
		o.call("tok-alice", "POST", "keys", body).is(http.StatusForbidden)
		on := map[string]any{"enabled": true}
		o.call("tok-bob", "PUT", "sandboxes/"+o.box.ID.String()+"/agent-feature", on).is(http.StatusForbidden)
		o.call("tok-eve", "PUT", "sandboxes/"+o.box.ID.String()+"/agent-feature", on).is(http.StatusNotFound)
		o.call("tok-eve", "PUT", "tenants/"+org.String()+"/agent-feature", on).is(http.StatusForbidden)
		o.call("tok-alice", "PUT", "tenants/"+org.String()+"/agent-feature", on).is(http.StatusOK)
	})
}

func TestS2_001_S2_038_TheSwitchOfASandboxGoesBeforeThatOfItsTenant(t *testing.T) {
	customers(t, func(o *office) {
		_, other := o.running(o.automation())
		enabled := func(id uuid.UUID) any {
			return o.call(o.key("sandboxes:read"), "GET", strings.Replace(o.path(""), o.box.ID.String(), id.String(), 1), nil).is(http.StatusOK)["enabled"]
		}
		require.Equal(o.t, false, enabled(other.ID), "nothing was said")
		o.call("tok-alice", "PUT", "tenants/"+org.String()+"/agent-feature", map[string]any{"enabled": true}).is(http.StatusOK)
		require.Equal(o.t, true, enabled(other.ID))
		o.call("tok-alice", "PUT", "sandboxes/"+other.ID.String()+"/agent-feature", map[string]any{"enabled": false}).is(http.StatusOK)
		require.Equal(o.t, false, enabled(other.ID))
	})
}

func TestAnAnswerWithASecretIsNotKept(t *testing.T) {
	customers(t, func(o *office) {
		body := map[string]any{"name": "k", "permissions": []string{"sandboxes:write"}}
		first := o.call("tok-alice", "POST", "keys", body, "Idempotency-Key", "one").is(http.StatusCreated)
		again := o.call("tok-alice", "POST", "keys", body, "Idempotency-Key", "one").is(http.StatusCreated)
		require.NotEqual(o.t, first["key"], again["key"])
		key := first["key"].(string)
		o.call(key, "POST", o.path(""), nil, "Idempotency-Key", "two").is(http.StatusAccepted)
		require.Equal(o.t, http.StatusUnauthorized, o.call("", "POST", o.path(""), nil, "Idempotency-Key", "two").Code)
	})
}
