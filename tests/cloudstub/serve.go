package cloudstub

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"
)

func (s *Stub) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	op, id := s.name(r)
	call := Call{At: time.Now(), Op: op, Method: r.Method, URL: r.URL.RequestURI(), Auth: authOf(r), Sandbox: id}
	if op != "upload" {
		call.Body = string(body)
	}
	s.mu.Lock()
	latency := s.latency
	fault, fails := s.always[op]
	if queue := s.faults[op]; len(queue) > 0 {
		fault, fails = queue[0], true
		s.faults[op] = queue[1:]
	}
	s.mu.Unlock()
	if latency > 0 {
		<-time.After(latency)
	}
	answer := httptest.NewRecorder()
	if !fails || fault.Done {
		s.work(answer, r, op, id)
	}
	call.Status = answer.Code
	if fails {
		call.Status = max(fault.Status, http.StatusOK)
	}
	s.locked(func() {
		if b := s.box(id); b != nil && op == "pause" {
			b.PauseCalls++
		} else if b != nil && op == "delete" {
			b.DeleteCalls++
		}
		s.calls = append(s.calls, call)
		close(s.change)
		s.change = make(chan struct{})
	})
	if fails {
		s.fail(w, r, fault)
		return
	}
	w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

func (s *Stub) fail(w http.ResponseWriter, r *http.Request, f Fault) {
	wait := func() {
		select {
		case <-r.Context().Done():
		case <-s.stop:
		}
	}
	if f.Hang {
		wait()
	}
	if f.Hang || f.Reset {
		panic(http.ErrAbortHandler)
	}
	for name, value := range f.Header {
		w.Header().Set(name, value)
	}
	w.Header().Set("X-Request-Id", "req-of-the-stub")
	w.WriteHeader(max(f.Status, http.StatusOK))
	_, _ = io.WriteString(w, f.Body)
	if f.Slow {
		_ = http.NewResponseController(w).Flush()
		wait()
		panic(http.ErrAbortHandler)
	}
}

// authOf names the credential as the recorded scenarios do.
func authOf(r *http.Request) string {
	switch {
	case r.Header.Get("Authorization") != "":
		return "Authorization: " + r.Header.Get("Authorization")
	case r.Header.Get("X-Service-API-Key") != "":
		return "X-Service-API-Key"
	case r.Header.Get("X-Session-API-Key") != "":
		return "X-Session-API-Key"
	case r.Header.Get("Cookie") != "":
		return "Cookie"
	}
	return ""
}

func answerJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		panic(http.ErrAbortHandler) // the caller sees a cut answer
	}
}

func detail(text string) map[string]string { return map[string]string{"detail": text} }

// name tells the op of a request and the sandbox it is about.
func (s *Stub) name(r *http.Request) (op, id string) {
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/sb/"); ok {
		id, rest, _ = strings.Cut(rest, "/")
		return agentOp(r.Method, rest), id
	}
	key := r.Method + " " + path
	switch {
	case key == "GET /api/v1/users/me":
		return "users_me", ""
	case key == "GET /api/agent-profiles":
		return "agent_profiles", ""
	case strings.HasPrefix(key, "POST /api/service/users/"):
		return "mint", ""
	case key == "POST /api/v1/sandboxes":
		return "create", ""
	case key == "GET /api/v1/sandboxes":
		return "get", r.URL.Query().Get("id")
	case key == "GET /api/v1/sandboxes/search":
		return "search", ""
	case strings.HasPrefix(path, "/api/v1/sandboxes/"):
		rest := strings.TrimPrefix(r.URL.EscapedPath(), "/api/v1/sandboxes/")
		escaped, action, _ := strings.Cut(rest, "/")
		id, _ = url.PathUnescape(escaped)
		switch {
		case r.Method == http.MethodDelete && action == "":
			return "delete", id
		case r.Method == http.MethodPost && (action == "pause" || action == "resume"):
			return action, id
		}
	}
	return "other", ""
}
