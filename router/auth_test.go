package router_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/config"
	"automation/router"
)

// routes calls each for every route, with ids filled in.
func routes(t *testing.T, h http.Handler, each func(method, path string)) {
	t.Helper()
	require.NoError(t, chi.Walk(h.(chi.Routes), func(method, path string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		path = strings.NewReplacer("{id}", uuid.NewString(), "{tenantId}", org.String(), "{sandboxId}", uuid.NewString(), "/*", "/x").Replace(path)
		if strings.HasSuffix(path, "/agent/output") {
			path += "?session_id=sxe_000000000000000000000000" // its form is checked before the login (S2-010)
		}
		each(method, path)
		return nil
	}))
}

func probe(path string) bool {
	for _, end := range []string{"/health", "/healthz", "/livez", "/ready", "/readyz", "/sdk-version", "/server_info"} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	return false
}

func TestS0_156_RoutesAnswerOnlyBehindTheLogin(t *testing.T) {
	for name, edit := range map[string]func(*router.Deps){
		"nothing configured": func(d *router.Deps) { d.Cloud = nil },
		"a local key":        func(d *router.Deps) { d.Cloud, d.LocalKey = nil, localKey },
		"the Cloud check":    func(*router.Deps) {},
	} {
		t.Run(name, func(t *testing.T) {
			once(t, func(t *testing.T, w *world) {
				n := 0
				routes(t, w.handler, func(method, path string) {
					n++
					for _, as := range []string{"", "wrong", " "} {
						got := w.call(as, method, path, nil, "Upgrade", "automation-relay")
						if probe(path) {
							require.Equal(t, http.StatusOK, got.Code, "%s %s", method, path)
						} else {
							require.Equal(t, http.StatusUnauthorized, got.Code, "%s %s as %q: %s", method, path, as, got.Body)
						}
					}
				})
				require.Greater(t, n, 30)
				require.Zero(t, w.door.entered.Load())
			}, edit)
		})
	}
}

func TestS0_156_OnLoopbackTheHostMustBeLoopback(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		for host, want := range map[string]int{
			"localhost:8000": 200, "127.0.0.1": 200, "127.3.2.1:80": 200, "[::1]:8000": 200, "LOCALHOST": 200, "box.example.test": 200,
			"evil.test": 403, "evil.test:8000": 403, "localhost.evil.test": 403, "127.0.0.1.evil.test": 403, "10.0.0.1": 403, "": 403,
		} {
			r := request(t, "GET", base+"/v1", localKey)
			r.Host = host
			require.Equal(t, want, w.serve(r).Code, "host %q", host)
			r = request(t, "GET", "/health", "")
			r.Host = host
			require.Equal(t, 200, w.serve(r).Code, "a probe from %q", host)
		}
	}, func(d *router.Deps) {
		d.Config.HTTP.Listen, d.Config.HTTP.BaseURL = "127.0.0.1:8000", "https://box.example.test"
		d.Cloud, d.LocalKey = nil, localKey
	})
}

func TestLoginByTheLocalKey(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		require.Equal(t, 200, w.call(localKey, "GET", "/api/automation/v1", nil).Code)
		require.Equal(t, 200, w.call("", "GET", "/api/automation/v1", nil, "X-Session-API-Key", localKey).Code)
		for _, key := range []string{"wrong", localKey + "x", localKey[1:], "tok-alice"} {
			require.Equal(t, "Invalid API key", w.call(key, "GET", "/api/automation/v1", nil).is(401)["detail"])
		}
		require.Equal(t, "Empty API key", w.call("", "GET", "/api/automation/v1", nil, "Authorization", "Bearer ").is(401)["detail"])
		require.Equal(t, "Empty API key",
			w.call("", "GET", "/api/automation/v1", nil, "Authorization", "Bearer", "X-Session-API-Key", localKey).is(401)["detail"])
		require.Equal(t, 401, w.call("", "GET", "/api/automation/v1", nil, "Cookie", "openhands_auth="+localKey).Code,
			"the key is no cookie")
		made := w.call(localKey, "POST", "/api/automation/v1", newAutomation()).is(201)
		require.Equal(t, "c1a96d89-eae7-53bd-86ad-07f26266402b", made["user_id"])
		require.Equal(t, "46d09c5c-7d7d-585f-8c37-a6b45a3de738", made["org_id"])
	}, func(d *router.Deps) { d.Cloud, d.LocalKey = nil, config.Secret(localKey) })
}

func TestRunTokenIsGoodForItsOwnRunOnly(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.automation()
		mine, _ := w.running(a)
		other, _ := w.running(a)
		token := w.store.MintRunToken(mine.ID, w.store.Now().Add(time.Hour))

		routes(t, w.handler, func(method, path string) {
			if strings.HasSuffix(path, "/complete") || strings.HasSuffix(path, "/phase") || strings.HasSuffix(path, "/relay") || probe(path) {
				return
			}
			require.Equal(t, 403, w.call(token, method, path, nil).Code, "%s %s", method, path)
		})
		for _, call := range []struct {
			path string
			body any
		}{{"/phase", map[string]any{"phase": "x"}}, {"/complete", map[string]any{"status": "COMPLETED"}}} {
			require.Equal(t, "Not your automation", w.call(token, "POST", "runs/"+other.ID.String()+call.path, call.body).is(403)["detail"])
			require.Equal(t, "Run not found", w.call(token, "POST", "runs/"+uuid.NewString()+call.path, call.body).is(404)["detail"])
			w.call(token, "POST", "runs/"+mine.ID.String()+call.path, call.body).is(200)
		}
		require.Equal(t, "RUNNING", string(w.run(other.ID).Status))

		w.clock.Advance(2 * time.Hour)
		w.call(token, "POST", "runs/"+mine.ID.String()+"/phase", map[string]any{"phase": "late"}).is(401)
	})
}

func TestTwoOrganizationsSeeNothingOfEachOther(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.automation()
		run, box := w.running(a)
		key := w.call("tok-alice", "POST", "keys", map[string]any{"name": "k", "permissions": []string{"all:all"}}).is(201)
		known := map[string]string{
			"": a.ID.String(), "runs/": run.ID.String(), "sandboxes/": box.ID.String(), "uploads/": uuid.NewString(), "keys/": key["id"].(string),
		}
		routes(t, w.handler, func(method, path string) {
			rest, below := strings.CutPrefix(path, base+"/v1/")
			if !below || probe(path) || strings.Contains(rest, "/complete") || strings.Contains(rest, "/phase") || strings.Contains(rest, "/cancel") {
				return
			}
			kind, id := "", ""
			for k, v := range known {
				if k != "" && strings.HasPrefix(rest, k) {
					kind, id = k, v
				}
			}
			if kind == "" {
				id = known[""]
			}
			unknown, tail, _ := strings.Cut(strings.TrimPrefix(rest, kind), "/")
			if _, err := uuid.Parse(unknown); err != nil {
				return // a list
			}
			if tail != "" {
				tail = "/" + tail
			}
			body := any(nil)
			switch {
			case method == "PATCH":
				body = map[string]any{"name": "taken"}
			case tail == "/extend":
				body = map[string]any{"seconds": 60}
			case tail == "/agent-feature":
				body = map[string]any{"enabled": true}
			case method == "DELETE" && kind == "sandboxes/":
				tail += "?confirm=history-will-be-lost"
			}
			foreign := w.call("tok-eve", method, kind+id+tail, body)
			absent := w.call("tok-eve", method, kind+unknown+tail, body)
			require.Equal(t, 404, foreign.Code, "%s %s", method, path)
			require.Equal(t, withoutRequestID(absent), withoutRequestID(foreign), "%s %s", method, path)
		})
		for _, list := range []string{"", "runs", "sandboxes", "uploads", "keys"} {
			require.EqualValues(t, 0, w.call("tok-eve", "GET", strings.TrimSuffix(base+"/v1/"+list, "/"), nil).is(200)["total"], list)
		}
		require.Nil(t, w.call("tok-alice", "GET", "keys", nil).is(200)["keys"].([]any)[0].(map[string]any)["revoked_at"])
		require.Equal(t, "nightly", must(w.store.Automation(t.Context(), org, a.ID)).Name)
		require.Equal(t, "RUNNING", string(w.run(run.ID).Status))
		require.EqualValues(t, 1, w.box(box.ID).Generation)
		require.Zero(t, w.door.entered.Load())
	})
}

func withoutRequestID(a answer) string {
	v := a.json()
	if e, ours := v["error"].(map[string]any); ours {
		delete(e, "request_id")
	}
	return encode(v)
}
