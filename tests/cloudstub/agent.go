package cloudstub

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// agentOp names a request to an agent server.
func agentOp(method, path string) string {
	switch {
	case path == "api/file/upload":
		return "upload"
	case path == "api/bash/start_bash_command":
		return "bash_start"
	case path == "api/bash/bash_events/search":
		return "bash_search"
	case strings.HasPrefix(path, "api/bash/bash_commands/") && strings.HasSuffix(path, "/stop"):
		return "bash_stop"
	case path == "api/conversations/count":
		return "conversation_count"
	case strings.HasPrefix(path, "api/conversations/") && method == http.MethodGet:
		return "events"
	case path == "server_info", path == "ready":
		return path
	}
	return "agent_other"
}

// agent answers for the agent server in a box, which is there only while the box runs and knows its present key only.
func (s *Stub) agent(w http.ResponseWriter, r *http.Request, op, id string) {
	b := s.box(id)
	switch {
	case b == nil || !b.DeletedAt.IsZero() || b.Status != "RUNNING":
		answerJSON(w, http.StatusBadGateway, detail("no such runtime"))
		return
	case r.Header.Get("X-Session-API-Key") != b.Key && op != "server_info" && op != "ready":
		answerJSON(w, http.StatusUnauthorized, nil)
		return
	}
	switch op {
	case "upload":
		s.upload(w, r, b)
	case "bash_start":
		s.bashStart(w, r, b)
	case "bash_search":
		s.bashSearch(w, r, b)
	case "bash_stop":
		part := strings.Split(r.URL.Path, "/")
		for _, c := range b.commands {
			if c.ID == part[len(part)-2] && c.Exit == nil {
				killed := -15
				c.Exit, c.Stopped = &killed, true
			}
		}
		answerJSON(w, http.StatusOK, map[string]bool{"success": true})
	case "events":
		s.events(w, b)
	case "conversation_count":
		answerJSON(w, http.StatusOK, b.conversations)
	case "ready":
		answerJSON(w, http.StatusOK, map[string]string{"status": "ready"})
	case "server_info":
		answerJSON(w, http.StatusOK, map[string]any{"version": "1.58.2", "uptime": 60.0, "idle_time": 3600.0})
	default:
		answerJSON(w, http.StatusNotFound, detail("Not Found"))
	}
}

func (s *Stub) upload(w http.ResponseWriter, r *http.Request, b *Sandbox) {
	file, _, err := r.FormFile("file")
	if err != nil {
		answerJSON(w, http.StatusUnprocessableEntity, detail(err.Error()))
		return
	}
	content, _ := io.ReadAll(file)
	b.uploads[r.URL.Query().Get("path")] = content
	answerJSON(w, http.StatusOK, map[string]bool{"success": true})
}

var sourced = regexp.MustCompile(`&& \. '([^']+)'`)

func (s *Stub) bashStart(w http.ResponseWriter, r *http.Request, b *Sandbox) {
	var body struct {
		Command string
		Timeout float64
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		answerJSON(w, http.StatusUnprocessableEntity, detail(err.Error()))
		return
	}
	raw := make([]byte, 16)
	_, _ = rand.Read(raw)
	c := &Command{ID: hex.EncodeToString(raw), Text: body.Command, Timeout: body.Timeout, Sandbox: b.ID}
	switch zero := 0; {
	case strings.HasPrefix(body.Command, "curl "):
		c.Exit, c.Stderr = &zero, s.curl.Stderr
		if s.curl.Exit != nil {
			c.Exit = s.curl.Exit
		}
	case strings.HasPrefix(body.Command, "rm "):
		c.Exit = &zero
	}
	if m := sourced.FindStringSubmatch(body.Command); m != nil {
		c.Env = environment(string(b.uploads[m[1]]))
	}
	b.commands = append(b.commands, c)
	answerJSON(w, http.StatusOK, map[string]any{"id": c.ID, "command": c.Text, "kind": "BashCommand"})
}

// environment reads lines of the form export NAME='value'.
func environment(file string) map[string]string {
	env := map[string]string{}
	for line := range strings.Lines(file) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "export "), "=")
		if ok {
			env[name] = strings.ReplaceAll(strings.Trim(value, "'"), `'\''`, "'")
		}
	}
	return env
}

func (s *Stub) bashSearch(w http.ResponseWriter, r *http.Request, b *Sandbox) {
	q := r.URL.Query()
	items := []any{}
	for _, c := range slices.Backward(b.commands) {
		if id := q.Get("command_id__eq"); id != "" && id != c.ID {
			continue
		}
		switch {
		case q.Get("kind__eq") != "BashOutput":
			items = append(items, map[string]any{"id": c.ID, "command": c.Text, "kind": "BashCommand"})
		case c.Exit != nil || c.Stdout+c.Stderr != "":
			items = append(items, map[string]any{
				"id": c.ID + "0", "command_id": c.ID, "order": 0, "kind": "BashOutput",
				"exit_code": c.Exit, "stdout": c.Stdout, "stderr": c.Stderr,
			})
		}
	}
	if n, err := strconv.Atoi(q.Get("limit")); err == nil && len(items) > n {
		items = items[:n]
	}
	answerJSON(w, http.StatusOK, map[string]any{"items": items, "next_page_id": nil})
}

func (s *Stub) events(w http.ResponseWriter, b *Sandbox) {
	items := []any{}
	for _, arguments := range slices.Backward(b.turns) {
		items = append(items, map[string]any{
			"tool_name": "finish", "tool_call": map[string]any{"name": "finish", "arguments": string(arguments)}, "action": arguments,
		})
	}
	answerJSON(w, http.StatusOK, map[string]any{"items": items, "next_page_id": nil})
}

// Run starts a command in a box, as a person does.
func (s *Stub) Run(sandbox, command string) {
	s.locked(func() {
		if b := s.box(sandbox); b != nil {
			b.commands = append(b.commands, &Command{ID: strconv.Itoa(len(b.commands)), Text: command, Sandbox: sandbox})
		}
	})
}

// Entrypoint returns the newest command in a box that is neither a download nor a removal; false when there is none.
func (s *Stub) Entrypoint(sandbox string) (Command, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.entrypoint(sandbox, ""); c != nil {
		return *c, true
	}
	return Command{}, false
}

func (s *Stub) entrypoint(sandbox, id string) *Command {
	b := s.box(sandbox)
	if b == nil {
		return nil
	}
	for _, c := range slices.Backward(b.commands) {
		if (id == "" || c.ID == id) && !strings.HasPrefix(c.Text, "curl ") && !strings.HasPrefix(c.Text, "rm ") {
			return c
		}
	}
	return nil
}

// Exit ends the newest entrypoint in a box.
func (s *Stub) Exit(sandbox string, code int, stdout, stderr string) {
	s.locked(func() {
		if c := s.entrypoint(sandbox, ""); c != nil {
			c.Exit, c.Stdout, c.Stderr = &code, stdout, stderr
		}
	})
}

// Prints lets the newest entrypoint in a box show output while it runs.
func (s *Stub) Prints(sandbox, stdout string) {
	s.locked(func() {
		if c := s.entrypoint(sandbox, ""); c != nil {
			c.Stdout = stdout
		}
	})
}

// Uploaded returns a file that was uploaded into a box.
func (s *Stub) Uploaded(sandbox, path string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.box(sandbox); b != nil {
		return b.uploads[path]
	}
	return nil
}

// Commands returns the commands of a box, oldest first.
func (s *Stub) Commands(sandbox string) []Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Command
	if b := s.box(sandbox); b != nil {
		for _, c := range b.commands {
			all = append(all, *c)
		}
	}
	return all
}
