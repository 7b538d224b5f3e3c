package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

const stubKey = "the-key-of-the-box"

// stubbedBox is "stub-box [stuck|python]": an agent server that says the same about its disk each time, as BOX_URL. Its trash
// empties by a megabyte with each look, or has something that stays; python announces nothing.
func stubbedBox(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: stub-box [stuck|python]")
	}
	kind := strings.Join(args, "")
	var mu sync.Mutex
	trash := 2_500_000
	mux := http.NewServeMux()
	answer := func(pattern string, text func(*http.Request) string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(r.URL.Path, "/api/") && r.Header.Get("X-Session-Api-Key") != stubKey {
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = w.Write([]byte(`{"detail":"Unauthorized"}`))
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(text(r)))
		})
	}
	answer("GET /server_info", func(*http.Request) string {
		if kind == "python" {
			return `{"version":"1.58.2","capabilities":["conversation_runtime_routes_v1"]}`
		}
		return `{"version":"1","capabilities":["storage_status_v1","storage_reclaim_v1","conversation_retention_v1"]}`
	})
	answer("GET /api/storage", func(*http.Request) string {
		stuck := ""
		if kind == "stuck" {
			stuck = `{"path":".trash/a","error":"permission denied","tries":3,"retry_at":"2099-01-01T00:00:00Z"}`
		}
		now := trash
		if trash = max(0, trash-1_000_000); kind == "stuck" {
			trash = max(trash, 500_000)
		}
		return fmt.Sprintf(stubbedStatus, time.Now().UTC().Add(-3*day-time.Minute).Format(time.RFC3339), now, stuck)
	})
	answer("POST /api/storage/reclaim", func(*http.Request) string { return stubbedPlan })
	answer("PUT /api/conversations/{id}/retention", func(*http.Request) string { return `{"policy":"days","days":7}` })
	server := httptest.NewServer(mux)
	ts.Defer(server.Close)
	ts.Setenv("BOX_URL", server.URL)
	ts.Setenv("AUTOMATION_SESSION_KEY", stubKey)
}

const stubbedStatus = `{"as_of":"%s","root":"/home/box",
	"filesystem":{"total_bytes":50000000000,"used_bytes":12000000000,"free_bytes":38000000000},"trash_bytes":%d,"stuck":[%s],
	"conversations":[
		{"id":"0198c0de-0000-4000-8000-000000000001","layout":"worktrees","state":"idle","last_active":null,"size_bytes":120000000,
			"retention":{"policy":"default","days":null},"next_pass":{"tier":"dependencies","bytes":100000000,"not_before":null,"reason":"over budget"}},
		{"id":"0198c0de-0000-4000-8000-000000000002","layout":"worktrees","state":"running","last_active":null,"size_bytes":3000,
			"retention":{"policy":"days","days":7},"next_pass":{"tier":"caches","bytes":0,"not_before":null,"reason":""}},
		{"id":"box","layout":"shared","state":"idle","last_active":null,"size_bytes":400000000,
			"retention":{"policy":"on_stop","days":null},"next_pass":{"tier":"caches","bytes":2500000,"not_before":null,"reason":""}}]}`

const stubbedPlan = `{"plan_id":"5f0c","dry_run":false,"duration_seconds":0.1,"freed_bytes":102500000,"items":[
	{"conversation_id":"box","tier":"caches","path":".cache/pip","bytes":2000000,"files":10,"outcome":"moved","reason":""},
	{"conversation_id":"box","tier":"caches","path":".cache/uv","bytes":500000,"files":1,"outcome":"moved","reason":""},
	{"conversation_id":"box","tier":"dependencies","path":"project/web/node_modules","bytes":100000000,"files":9000,"outcome":"moved","reason":""},
	{"conversation_id":"box","tier":"dependencies","path":"project/vendor","bytes":4096,"files":3,"outcome":"skipped","reason":"holds a checkout"}]}`
