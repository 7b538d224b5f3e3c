package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The parts of the service's objects that commands show or decide on. What is shown as JSON is the answer itself.
type (
	automationObject struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	}
	runObject struct {
		ID             string        `json:"id"`
		AutomationID   string        `json:"automation_id"`
		Status         string        `json:"status"`
		TriggerSource  string        `json:"trigger_source"`
		ErrorDetail    string        `json:"error_detail"`
		CurrentPhase   string        `json:"current_phase"`
		ConversationID string        `json:"conversation_id"`
		Cost           *float64      `json:"cost"`
		CreatedAt      time.Time     `json:"created_at"`
		StartedAt      *time.Time    `json:"started_at"`
		CompletedAt    *time.Time    `json:"completed_at"`
		TimeoutAt      *time.Time    `json:"timeout_at"`
		CommandID      string        `json:"bash_command_id"`
		ExitCode       *int          `json:"exit_code"`
		HasLogs        bool          `json:"has_logs"`
		Sandbox        *runSandbox   `json:"sandbox"`
		Cleanup        cleanupObject `json:"cleanup"`
	}
	runSandbox struct {
		ID       string `json:"id"`
		Backend  string `json:"backend"`
		Desired  string `json:"desired"`
		Observed string `json:"observed"`
	}
	cleanupObject struct {
		DueAt       *time.Time `json:"due_at"`
		SecondsLeft *int       `json:"seconds_left"`
		Source      string     `json:"source"`
		State       string     `json:"state"`
		LastError   string     `json:"last_error"`
		Attempts    int        `json:"attempts"`
	}
	boxObject struct {
		ID             string        `json:"id"`
		AutomationID   string        `json:"automation_id"`
		RunID          string        `json:"run_id"`
		Backend        string        `json:"backend"`
		ProviderID     string        `json:"provider_id"`
		Desired        string        `json:"desired"`
		Observed       string        `json:"observed"`
		ObservedAt     *time.Time    `json:"observed_at"`
		OrderedAt      *time.Time    `json:"ordered_at"`
		OrderedBy      string        `json:"ordered_by"`
		OrderReason    string        `json:"order_reason"`
		SuspendedAt    *time.Time    `json:"suspended_at"`
		MemoryKept     bool          `json:"memory_kept"`
		Billed         string        `json:"billed"`
		BilledDetail   string        `json:"billed_detail"`
		ExpiresAt      *time.Time    `json:"expires_at"`
		LastAccessAt   *time.Time    `json:"last_access_at"`
		CreatedAt      time.Time     `json:"created_at"`
		DeletedAt      *time.Time    `json:"deleted_at"`
		Note           string        `json:"note"`
		NeedsAttention string        `json:"needs_attention"`
		ReclaimedBytes int64         `json:"reclaimed_bytes"`
		Export         *exportObject `json:"export"`
		Kept           *struct {
			At     time.Time `json:"at"`
			By     string    `json:"by"`
			Reason string    `json:"reason"`
		} `json:"kept"`
		Cleanup cleanupObject `json:"cleanup"`
	}
	eventObject struct {
		At         time.Time `json:"at"`
		What       string    `json:"what"`
		Actor      string    `json:"actor"`
		Reason     string    `json:"reason"`
		Outcome    string    `json:"outcome"`
		Bytes      int64     `json:"bytes"`
		DurationMS int64     `json:"duration_ms"`
	}
)

// pageSize is the most that the service gives at once.
const pageSize = 100

// mostSearched is how many of the newest objects a name or the beginning of an id is looked for in.
const mostSearched = 5000

// page is one answer with a list under a name of its own.
type page struct {
	items []json.RawMessage
	total int
}

// list reads up to limit objects, newest first; key is the name of the list in the answers.
func (c *client) list(ctx context.Context, path string, query url.Values, key string, limit int) (page, error) {
	all := page{items: []json.RawMessage{}}
	for len(all.items) < limit {
		query.Set("limit", strconv.Itoa(min(pageSize, limit-len(all.items))))
		query.Set("offset", strconv.Itoa(len(all.items)))
		var answer map[string]json.RawMessage
		if err := c.get(ctx, path+"?"+query.Encode(), &answer); err != nil {
			return all, err
		}
		var items []json.RawMessage
		if err := json.Unmarshal(answer[key], &items); err != nil {
			return all, fmt.Errorf("%w at %s: its answer has no list of %s", errUnreachable, c.root, key)
		}
		_ = json.Unmarshal(answer["total"], &all.total) // a service that does not count leaves it 0
		all.items = append(all.items, items...)
		if len(items) == 0 || len(all.items) >= all.total {
			break
		}
	}
	return all, nil
}

// decode reads the items of a page.
func decode[T any](items []json.RawMessage) ([]T, error) {
	all := make([]T, len(items))
	for i, item := range items {
		if err := json.Unmarshal(item, &all[i]); err != nil {
			return nil, fmt.Errorf("%w: an object of its answer is malformed: %w", errUnreachable, err)
		}
	}
	return all, nil
}

// listed reads up to limit objects and decodes them.
func listed[T any](ctx context.Context, c *client, path string, query url.Values, key string, limit int) ([]T, page, error) {
	p, err := c.list(ctx, path, query, key, limit)
	if err != nil {
		return nil, p, err
	}
	all, err := decode[T](p.items)
	return all, p, err
}

// names maps the ids of automations to their names.
func (c *client) names(ctx context.Context) (map[string]string, error) {
	all, _, err := listed[automationObject](ctx, c, "", url.Values{}, "automations", mostSearched)
	names := make(map[string]string, len(all))
	for _, a := range all {
		names[a.ID] = a.Name
	}
	return names, err
}

// candidate is an object that an argument may mean.
type candidate struct{ id, automation string }

// pick finds the one candidate that word means: by the beginning of its id, or by the name of its automation, in any case.
// kind is the word for such objects.
func pick(word, kind string, all []candidate, names map[string]string) (string, error) {
	if strings.TrimSpace(word) == "" { // begins every id: a variable of a script that is not set would mean the only one there is
		return "", usageError{fmt.Errorf("%s %q: want an id, the beginning of one, or a name", kind, word)}
	}
	var matching []string
	for _, c := range all {
		if strings.HasPrefix(c.id, strings.ToLower(word)) {
			matching = append(matching, c.id)
		}
	}
	if len(matching) == 0 {
		for _, c := range all {
			if name := names[c.automation]; name != "" && strings.EqualFold(name, word) {
				matching = append(matching, c.id)
			}
		}
	}
	switch len(matching) {
	case 0:
		return "", fmt.Errorf("%s %q: %w", kind, word, errMissing)
	case 1:
		return matching[0], nil
	}
	const shown = 5
	more := ""
	if len(matching) > shown {
		more = fmt.Sprintf(" and %d more", len(matching)-shown)
	}
	return "", usageError{fmt.Errorf("%s %q: which of %s%s?", kind, word,
		strings.Join(matching[:min(shown, len(matching))], ", "), more)}
}

// isID reports whether a word is a whole id.
func isID(word string) bool {
	_, err := uuid.Parse(word)
	return err == nil && len(word) == len(uuid.Nil.String())
}

// automation finds an automation by its id, the beginning of it, or its name.
func (c *client) automation(ctx context.Context, word string) (string, error) {
	if isID(word) {
		return strings.ToLower(word), nil
	}
	names, err := c.names(ctx)
	if err != nil {
		return "", err
	}
	var all []candidate
	for id := range names {
		all = append(all, candidate{id, id})
	}
	return pick(word, "automation", all, names)
}

// run finds a run by its id, the beginning of it, or the name of an automation that has this one run only.
func (c *client) run(ctx context.Context, word string) (string, error) {
	if isID(word) {
		return strings.ToLower(word), nil
	}
	runs, _, err := listed[runObject](ctx, c, "/runs", url.Values{}, "runs", mostSearched)
	if err != nil {
		return "", err
	}
	var all []candidate
	for _, r := range runs {
		all = append(all, candidate{r.ID, r.AutomationID})
	}
	names, err := c.names(ctx)
	if err != nil {
		return "", err
	}
	return pick(word, "run", all, names)
}

// box finds a box by its workspace id, the beginning of it, or the name of an automation that has this one box only. A box
// that is gone is found by its id alone.
func (c *client) box(ctx context.Context, word string) (string, error) {
	if isID(word) {
		return strings.ToLower(word), nil
	}
	boxes, _, err := listed[boxObject](ctx, c, "/sandboxes", url.Values{}, "sandboxes", mostSearched)
	if err != nil {
		return "", err
	}
	var all []candidate
	for _, b := range boxes {
		named := b.AutomationID
		if b.Observed == "deleted" {
			named = ""
		}
		all = append(all, candidate{b.ID, named})
	}
	names, err := c.names(ctx)
	if err != nil {
		return "", err
	}
	id, err := pick(word, "sandbox", all, names)
	if err != nil && codeOf(err) == exitNotFound && !strings.ContainsAny(word, "/?#%") {
		// The service may know the word as a provider's id, and then says what the box is called.
		var refused *apiError
		if asked := c.get(ctx, "/sandboxes/"+url.PathEscape(word), nil); asAPIError(asked, &refused) && refused.code == "provider_id" {
			return "", asked
		}
	}
	return id, err
}
