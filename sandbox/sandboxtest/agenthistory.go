package sandboxtest

import (
	"archive/zip"
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Conversation is one in a box.
type Conversation struct {
	ID     string // dashed
	Events int    // as it counts them
	Hidden bool   // the box does not list it
	Status string // its execution_status
	// Zip is served as its trajectory; nil: Trajectory of it.
	Zip []byte
	// Short is cut off the answer's end, in bytes.
	Short int
	// Claims is the size that the answer announces; 0: that of the zip.
	Claims int64
}

// Converse lets boxes that are still to be made begin with a conversation: a disk that came along.
func (s *AgentServer) Converse(c Conversation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.talks = append(s.talks, c)
}

// Reclaims returns the bodies of all reclaims so far.
func (b *AgentBox) Reclaims() (bodies string) {
	b.locked(func() { bodies = b.reclaims.String() })
	return bodies
}

// Converse adds a conversation to the box, or replaces the one with that id.
func (b *AgentBox) Converse(c Conversation) {
	b.locked(func() {
		for i, known := range b.history {
			if known.ID == c.ID {
				b.history[i] = &c
				return
			}
		}
		b.history = append(b.history, &c)
	})
}

// Trajectory is the archive of a conversation with n events.
func Trajectory(id string, n int) []byte {
	folder := strings.ReplaceAll(id, "-", "")
	entries := map[string]string{folder + "/meta.json": `{"title":null}`, folder + "/base_state.json": "{}"}
	for i := range n {
		entries[fmt.Sprintf("%s/events/event-%05d-x.json", folder, i)] = fmt.Sprintf(`{"n":%d}`, i)
	}
	return Zip(entries)
}

// Zip packs files by name.
func Zip(entries map[string]string) []byte {
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	for name, content := range entries {
		file, err := archive.Create(name)
		if err == nil {
			_, err = file.Write([]byte(content))
		}
		if err != nil {
			panic(err) // memory takes everything
		}
	}
	_ = archive.Close()
	return packed.Bytes()
}

// conversations lists them. The caller holds the lock.
func (b *AgentBox) conversations(w http.ResponseWriter, status string) {
	items := []any{}
	for _, c := range b.history {
		if !c.Hidden && (status == "" || status == c.Status) {
			items = append(items, map[string]any{"id": c.ID, "execution_status": c.Status})
		}
	}
	answer(w, http.StatusOK, map[string]any{"items": items, "next_page_id": nil})
}

func (b *AgentBox) conversation(w http.ResponseWriter, id string) *Conversation {
	for _, c := range b.history {
		if c.ID == id {
			return c
		}
	}
	answer(w, http.StatusNotFound, map[string]any{"detail": "Conversation not found"})
	return nil
}

func (b *AgentBox) events(w http.ResponseWriter, id string) {
	if c := b.conversation(w, id); c != nil {
		answer(w, http.StatusOK, c.Events)
	}
}

func (b *AgentBox) trajectory(w http.ResponseWriter, id string) {
	c := b.conversation(w, id)
	if c == nil {
		return
	}
	packed := c.Zip
	if packed == nil {
		packed = Trajectory(c.ID, c.Events)
	}
	w.Header().Set("Content-Type", "application/zip")
	w.Header().Set("Content-Length", strconv.FormatInt(cmp.Or(c.Claims, int64(len(packed))), 10))
	_, _ = w.Write(packed[:len(packed)-c.Short]) // too few bytes: the connection is cut
}
