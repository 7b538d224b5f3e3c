package tests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// The public routes of agents as somebody meets them who means no good.

// knock makes a request of a customer, with a credential, a body and headers as name and value; status 0: no answer came.
func knock(ctx context.Context, method, url, credential, body string, headers ...string) (status int, header http.Header, answer []byte) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil
	}
	if credential != "" {
		request.Header.Set("Authorization", "Bearer "+credential)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := customers.Do(request)
	if err != nil {
		return 0, nil, nil
	}
	defer response.Body.Close()
	if answer, err = io.ReadAll(response.Body); err != nil {
		return 0, nil, nil
	}
	return response.StatusCode, response.Header, answer
}

func TestS2_009_S2_010_S2_049_S2_050_S2_059_S2_064_S2_070_S2_071_WhatAStrangerAsks(t *testing.T) {
	t.Parallel()
	s := start(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=86400", "AUTOMATION_CUSTOMER_AGENT_COMMAND=echo up")
	box := s.woken(nil)
	key := func(permission string) string {
		return s.call(http.MethodPost, "/keys", object{"name": "k", "permissions": []string{permission}}, http.StatusCreated).text("key")
	}
	read, write, legacy := key("sandboxes:read"), key("sandboxes:write"), key("sandbox:write")
	agent := s.agentOf(box)
	other := strings.Replace(agent, tenant, uuid.NewString(), 1)
	unknown := strings.Replace(agent, filepath.Base(box), uuid.NewString(), 1)
	never := agent + "/output?session_id=sxe_000000000000000000000000"
	require.Equal(t, "sandbox_agent_not_started", s.agent(http.MethodGet, never, http.StatusNotFound).text("error", "code"))
	id := s.agent(http.MethodPost, agent, http.StatusAccepted).text("session_id")
	until(t, "the server has ended", func() bool {
		return s.agent(http.MethodGet, agent, http.StatusOK).text("status") == "stopped"
	})
	output := agent + "/output?session_id=" + id
	json := []string{"Content-Type", "application/json"}
	for _, row := range []struct {
		method, url, as, body string
		headers               []string
		status                int
	}{
		{"GET", other, read, "", nil, 403},
		{"GET", other + "/output?session_id=" + id, read, "", nil, 403},
		{"DELETE", other, write, "", nil, 403},
		{"GET", unknown, read, "", nil, 404},
		{"GET", unknown, legacy, "", nil, 403},
		{"GET", strings.Replace(agent, tenant, "{"+tenant+"}", 1), "", "", nil, 400},
		{"GET", strings.Replace(agent, tenant, strings.ReplaceAll(tenant, "-", ""), 1), "", "", nil, 400},
		{"GET", agent, "", "", nil, 401},
		{"GET", agent, read + "x", "", nil, 401},
		{"GET", agent, "sxt_" + strings.Repeat("A", 43), "", nil, 401},
		{"GET", agent, "", "", []string{"Authorization", "Basic " + read}, 401},
		{"GET", agent, "", "", []string{"Authorization", "Bearer"}, 401},
		{"GET", agent, "", "", []string{"X-API-Key", read}, 401},
		{"POST", agent, read, "", nil, 403},
		{"DELETE", agent, read, "", nil, 403},
		{"POST", agent + "/tickets", read, "", nil, 403},
		{"POST", agent, write, `{"session_id":"` + id + `"}`, json, 400},
		{"POST", agent, write, "{}{}", json, 400},
		{"POST", agent, write, "{}", []string{"Content-Type", "text/plain"}, 400},
		{"POST", agent, write, "{}" + strings.Repeat(" ", 2<<10), json, 400},
		{"POST", agent, write, "", []string{"Idempotency-Key", "a b"}, 400},
		{"DELETE", agent, write, "{}", json, 400},
		{"PUT", agent, write, "{}", json, 405},
		{"HEAD", agent + "/output?session_id=" + id, read, "", nil, 405},
		{"GET", agent + "/output", read, "", nil, 400},
		{"GET", agent + "/output?session_id=" + strings.ToUpper(id), read, "", nil, 400},
		{"GET", output[:len(output)-1], read, "", nil, 400},
		{"GET", output + "0", read, "", nil, 400},
		{"GET", output + "%00", read, "", nil, 400},
		{"GET", output + "&session_id=" + id, read, "", nil, 400},
		{"GET", output + "&after=-1", read, "", nil, 400},
		{"GET", output + "&after=1.5", read, "", nil, 400},
		{"GET", output + "&after=1e1", read, "", nil, 400},
		{"GET", output + "&after=0x1", read, "", nil, 400},
		{"GET", output + "&after=", read, "", nil, 400},
		{"GET", output + "&after=%2B1", read, "", nil, 400},
		{"GET", output + "&after=%D9%A1", read, "", nil, 400},
		{"GET", output + "&after=0&after=1", read, "", nil, 400},
		{"GET", output + "&after=9007199254740993", read, "", nil, 400},
		{"GET", output + "&after=99999999999999999999999", read, "", nil, 400},
		{"GET", output + "&after=3", read, "", nil, 400},
		{"GET", output + "&follow=perhaps", read, "", nil, 400},
		{"GET", never, read, "", nil, 409},
		{"GET", agent + "/relay", write, "", []string{"Upgrade", "automation-relay", "Connection", "Upgrade"}, 401},
		{"GET", agent + "/relay", write, "", nil, 400},
		{"GET", output, read, "{", nil, 200},
		{"GET", output + "&after=2", read, "", []string{"Range", "bytes=0-99999999999999999999", "If-None-Match", "*"}, 200},
	} {
		status, header, answer := knock(t.Context(), row.method, row.url, row.as, row.body, row.headers...)
		require.Equal(t, row.status, status, "%s %s %v: %s", row.method, row.url, row.headers, answer)
		if status == http.StatusUnauthorized && !strings.HasSuffix(row.url, "/relay") {
			require.Equal(t, "Bearer", header.Get("WWW-Authenticate"))
		}
		require.NotContains(t, string(answer), read)
	}
	status, header, answer := knock(t.Context(), http.MethodGet, output, read, "", "Range", "bytes=0-1", "Accept-Encoding", "gzip")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "application/x-ndjson", header.Get("Content-Type"))
	require.Equal(t, "no-store", header.Get("Cache-Control"))
	require.Equal(t, "no", header.Get("X-Accel-Buffering"))
	require.Empty(t, header.Get("Content-Encoding"))
	require.Equal(t, []string{
		`{"type":"stdout","seq":1,"data":"dXAK"}`, `{"type":"exit","seq":2,"exit_code":0,"reason":"exited","output_truncated":false}`, "",
	}, strings.Split(string(answer), "\n"))
}

// running counts the processes of this machine that were started as program with one argument.
func running(t *testing.T, program, argument string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, path := range all {
		if line, err := os.ReadFile(path); err == nil && bytes.Equal(line, []byte(program+"\x00"+argument+"\x00")) {
			n++
		}
	}
	return n
}

func TestS2_021_S2_031_S2_032_S2_034_StartsAndStopsRaceWhileTheServiceIsKilled(t *testing.T) {
	eachDatabase(t, func(t *testing.T, database []string) {
		seconds := fmt.Sprintf("%d.%d", 86400, rand.Uint64())
		s := start(t, append(database, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=86400", "AUTOMATION_CUSTOMER_AGENT_COMMAND=exec sleep "+seconds)...)
		box := s.woken(nil)
		for range 3 {
			agent, answers := s.agentOf(box), make(chan string, 256)
			var all sync.WaitGroup
			for i := range 16 {
				all.Go(func() {
					for n := range 4 {
						method, allowed := http.MethodPost, []int{0, http.StatusAccepted, http.StatusServiceUnavailable}
						if (i+n)%3 == 0 {
							method, allowed = http.MethodDelete, []int{0, http.StatusOK}
						}
						status, _, answer := knock(t.Context(), method, agent, s.key, "")
						if status != allowed[0] && status != allowed[1] && status != allowed[len(allowed)-1] {
							answers <- fmt.Sprintf("%s: %d %s", method, status, answer)
						}
						answers <- ""
					}
				})
			}
			for range 24 { // in the middle of it
				require.Empty(t, <-answers)
			}
			s.kill()
			all.Wait()
			close(answers)
			for problem := range answers {
				require.Empty(t, problem)
			}
			require.LessOrEqual(t, running(t, "sleep", seconds), 1, "one server, whatever broke off")
			s.launch()
		}
		require.Equal(t, "stopped", s.agent(http.MethodDelete, s.agentOf(box), http.StatusOK).text("status"))
		until(t, "what is stopped does not run", func() bool { return running(t, "sleep", seconds) == 0 })
		id := s.agent(http.MethodPost, s.agentOf(box), http.StatusAccepted).text("session_id")
		until(t, "it runs", func() bool { return running(t, "sleep", seconds) == 1 })
		r := &reading{}
		require.Equal(t, "stopped", s.agent(http.MethodDelete, s.agentOf(box), http.StatusOK).text("status"))
		r.open(t.Context(), s, s.agentOf(box)+"/output?session_id="+id, 1<<20)
		require.Equal(t, "stopped_by_user", r.exit.Reason)
		require.Equal(t, 143, *r.exit.ExitCode)
		require.Zero(t, running(t, "sleep", seconds))
	})
}
