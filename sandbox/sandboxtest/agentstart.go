package sandboxtest

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/google/uuid"
)

// Uploaded returns what was last uploaded to a path of the box, or "".
func (b *AgentBox) Uploaded(path string) (content string) {
	b.locked(func() { content = b.uploads[path] })
	return content
}

// Commands returns copies of all commands, oldest first.
func (b *AgentBox) Commands() (all []Command) {
	b.locked(func() {
		for _, c := range b.commands {
			all = append(all, *c)
		}
	})
	return all
}

// End ends a command with all its output at once.
func (b *AgentBox) End(id, stdout, stderr string, code int) {
	b.locked(func() {
		c := b.command(id)
		c.Stdout, c.Stderr, c.Exit = stdout, stderr, &code
	})
}

// OnStart calls started with every command that a request starts, before the answer goes out. It must not call the box.
func (b *AgentBox) OnStart(started func(c *Command)) { b.locked(func() { b.onStart = started }) }

// LoseStarts lets commands start and the answers be lost.
func (b *AgentBox) LoseStarts() { b.locked(func() { b.mute = true }) }

// upload stores a file. The caller holds the lock.
func (b *AgentBox) upload(w http.ResponseWriter, r *http.Request) {
	file, _, err := r.FormFile("file")
	if err != nil {
		answer(w, http.StatusUnprocessableEntity, map[string]any{"detail": err.Error()})
		return
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(file)
	if err != nil {
		answer(w, http.StatusBadRequest, map[string]any{"detail": err.Error()})
		return
	}
	put(&b.uploads, r.URL.Query().Get("path"), string(content))
	answer(w, http.StatusOK, map[string]any{"success": true, "file_size": len(content)})
}

// start starts a command. The caller holds the lock.
func (b *AgentBox) start(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Command string `json:"command"`
		Timeout int    `json:"timeout"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		answer(w, http.StatusUnprocessableEntity, map[string]any{"detail": err.Error()})
		return
	}
	c := &Command{ID: strings.ReplaceAll(uuid.NewString(), "-", ""), Text: body.Command}
	b.commands = append(b.commands, c)
	if b.onStart != nil {
		b.onStart(c)
	}
	if b.mute {
		panic(http.ErrAbortHandler)
	}
	answer(w, http.StatusOK, map[string]any{"id": c.ID, "command": c.Text, "timeout": body.Timeout, "kind": "BashCommand"})
}
