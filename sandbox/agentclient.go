package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Features that a server announces in the capabilities of its server_info (design section 11).
const (
	FeatureStorageStatus  = "storage_status_v1"
	FeatureStorageReclaim = "storage_reclaim_v1"
	FeatureProcessOutput  = "process_output_v1"
	FeatureStartOnce      = "start_once_v1"
)

// Deadlines of single calls, and the most that is read of one answer.
const (
	agentCall        = 10 * time.Second
	agentUpload      = 60 * time.Second
	agentReclaim     = 60 * time.Second
	agentAnswerBytes = 8 << 20
	agentOutputBytes = 32 << 20 // one output event holds up to 1 Mi characters of each stream, escaped
)

// Agent is a client of the agent server in one box. It is the only way into a box (S0-004, S0-035). Every call has a
// deadline of its own beside the caller's context, answers are read up to a bound, and redirects are not followed, so that
// the key reaches no other host.
type Agent struct {
	URL  string
	Key  string
	HTTP *http.Client // nil: one shared client without proxy
}

// ServerInfo is what an agent server says of itself.
type ServerInfo struct {
	Version      string
	Uptime       time.Duration
	IdleTime     time.Duration // since the server last did real work; wall clock, so it jumps over a suspend
	Capabilities []string
}

// Has reports whether the server announces a feature.
func (i ServerInfo) Has(feature string) bool { return slices.Contains(i.Capabilities, feature) }

// ServerInfo asks the server about itself; it does not move the box's idle clock.
func (a Agent) ServerInfo(ctx context.Context) (ServerInfo, error) {
	var answer struct {
		Version      string   `json:"version"`
		Uptime       float64  `json:"uptime"`
		IdleTime     float64  `json:"idle_time"`
		Capabilities []string `json:"capabilities"`
	}
	if err := a.get(ctx, "/server_info", nil, &answer); err != nil {
		return ServerInfo{}, err
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return ServerInfo{Version: answer.Version, Uptime: seconds(answer.Uptime), IdleTime: seconds(answer.IdleTime), Capabilities: answer.Capabilities}, nil
}

// Ready returns nil once the server takes requests.
func (a Agent) Ready(ctx context.Context) error { return a.get(ctx, "/ready", nil, nil) }

// WaitReady probes until the server is ready; it gives up when ctx ends, with the last probe's error. It probes the faster the
// shorter it has waited, so that little is added to a boot of any length.
func (a Agent) WaitReady(ctx context.Context) error {
	began := time.Now()
	for {
		probe, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := a.Ready(probe)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the agent server: %w", errors.Join(ctx.Err(), err))
		case <-time.After(min(max(time.Since(began)/50, 20*time.Millisecond), 500*time.Millisecond)):
		}
	}
}

// Home returns the absolute path of the box's home directory.
func (a Agent) Home(ctx context.Context) (string, error) {
	var answer struct {
		Home string `json:"home"`
	}
	if err := a.get(ctx, "/api/file/home", nil, &answer); err != nil {
		return "", err
	}
	return answer.Home, nil
}

// Upload writes r to the absolute path in the box; parents are made.
func (a Agent) Upload(ctx context.Context, path string, r io.Reader) error {
	var head bytes.Buffer
	form := multipart.NewWriter(&head)
	if _, err := form.CreateFormFile("file", "upload"); err != nil {
		return fmt.Errorf("upload form: %w", err)
	}
	body := io.MultiReader(&head, r, strings.NewReader("\r\n--"+form.Boundary()+"--\r\n"))
	var answer struct {
		Success bool `json:"success"`
	}
	req := agentRequest{
		method: http.MethodPost, path: "/api/file/upload", query: url.Values{"path": {path}},
		body: body, contentType: form.FormDataContentType(), within: agentUpload,
	}
	if err := a.do(ctx, req, &answer); err != nil {
		return err
	}
	if !answer.Success {
		return fmt.Errorf("upload to %s: the box reports no success", path)
	}
	return nil
}

// StartCommand starts a shell command in the box, ended by the box after timeout, and returns the id it got.
func (a Agent) StartCommand(ctx context.Context, command string, timeout time.Duration) (string, error) {
	id, _, err := a.startCommand(ctx, map[string]any{"command": command}, timeout)
	return id, err
}

// StartCommandOnce is StartCommand where nothing was started with the key before (start_once_v1): otherwise it returns that
// command, and its text.
func (a Agent) StartCommandOnce(ctx context.Context, key, command string, timeout time.Duration) (id, text string, err error) {
	return a.startCommand(ctx, map[string]any{"command": command, "idempotency_key": key}, timeout)
}

func (a Agent) startCommand(ctx context.Context, body map[string]any, timeout time.Duration) (id, text string, err error) {
	var answer struct {
		ID      string `json:"id"`
		Command string `json:"command"`
	}
	body["timeout"] = int(max(timeout, time.Second) / time.Second)
	if err := a.post(ctx, "/api/bash/start_bash_command", body, &answer, agentCall); err != nil {
		return "", "", err
	}
	if answer.ID == "" {
		return "", "", errors.New("start command: the box named no id")
	}
	return answer.ID, answer.Command, nil
}

// StopCommand ends a command's processes; stopping one that has ended is nil.
func (a Agent) StopCommand(ctx context.Context, id string) error {
	return a.post(ctx, "/api/bash/bash_commands/"+url.PathEscape(id)+"/stop", nil, nil, agentCall)
}

// StopCommandGently is StopCommand where what stops at a SIGTERM has grace for it, in whole seconds, before it is killed
// (process_output_v1).
func (a Agent) StopCommandGently(ctx context.Context, id string, grace time.Duration) error {
	r := agentRequest{
		method: http.MethodPost, path: "/api/bash/bash_commands/" + url.PathEscape(id) + "/stop",
		query: url.Values{"grace": {itoa(int64(grace / time.Second))}}, within: agentCall + grace,
	}
	return a.do(ctx, r, nil)
}

// CommandOutput is the newest output event of a command. Output arrives only when the command ends, save each full MiB.
type CommandOutput struct {
	ExitCode *int // nil: running, or unknown
	Stdout   string
	Stderr   string
	Order    int
}

// LastOutput returns the newest output event; a nil ExitCode says that the command still runs.
func (a Agent) LastOutput(ctx context.Context, commandID string) (CommandOutput, error) {
	items, _, err := a.bashEvents(ctx, url.Values{
		"kind__eq": {"BashOutput"}, "command_id__eq": {commandID}, "sort_order": {"TIMESTAMP_DESC"}, "limit": {"1"},
	})
	if err != nil || len(items) == 0 {
		return CommandOutput{}, err
	}
	return items[0].output(), nil
}

// FindCommand looks a command up by a marker in its text, newest first, when its id was lost. It returns "" when the box
// knows no such command.
func (a Agent) FindCommand(ctx context.Context, marker string) (string, error) {
	query := url.Values{"kind__eq": {"BashCommand"}, "sort_order": {"TIMESTAMP_DESC"}, "limit": {"100"}}
	for range 20 {
		items, next, err := a.bashEvents(ctx, query)
		if err != nil {
			return "", err
		}
		for _, item := range items {
			if strings.Contains(item.Command, marker) {
				return item.ID, nil
			}
		}
		if next == "" {
			break
		}
		query.Set("page_id", next)
	}
	return "", nil
}

// Storage returns the box's own answer about its disk (storage_status_v1).
func (a Agent) Storage(ctx context.Context) (json.RawMessage, error) {
	var answer json.RawMessage
	err := a.get(ctx, "/api/storage", nil, &answer)
	return answer, err
}

// ReclaimTier says how much of a box's rebuildable files may go.
type ReclaimTier string

// The tiers of a reclaim; ReclaimOff is a setting only and never sent.
const (
	ReclaimPolicy       ReclaimTier = "policy"
	ReclaimCaches       ReclaimTier = "caches"
	ReclaimDependencies ReclaimTier = "dependencies"
	ReclaimOff          ReclaimTier = "off"
)

// Reclaimed is the box's answer to a reclaim.
type Reclaimed struct {
	FreedBytes int64
	Answer     json.RawMessage // whole, as the box gave it
}

// Reclaim asks the box to free rebuildable files (storage_reclaim_v1); a dry one only plans (S0-001).
func (a Agent) Reclaim(ctx context.Context, dry bool, tier ReclaimTier) (Reclaimed, error) {
	var answer json.RawMessage
	body := map[string]any{"dry_run": dry, "tier": tier}
	if err := a.post(ctx, "/api/storage/reclaim", body, &answer, agentReclaim); err != nil {
		return Reclaimed{}, err
	}
	var sum struct {
		FreedBytes int64 `json:"freed_bytes"`
	}
	if err := json.Unmarshal(answer, &sum); err != nil {
		return Reclaimed{}, fmt.Errorf("reclaim answer: %w", err)
	}
	return Reclaimed{FreedBytes: sum.FreedBytes, Answer: answer}, nil
}

// FinishResponse returns the arguments of the newest finish call among the last 100 actions of a conversation, or nil.
func (a Agent) FinishResponse(ctx context.Context, conversationID string) (json.RawMessage, error) {
	var page struct {
		Items []struct {
			ToolName string `json:"tool_name"`
			ToolCall struct {
				Arguments string `json:"arguments"`
			} `json:"tool_call"`
			Action json.RawMessage `json:"action"`
		} `json:"items"`
	}
	query := url.Values{
		"kind":       {"openhands.sdk.event.llm_convertible.action.ActionEvent"},
		"sort_order": {"TIMESTAMP_DESC"}, "limit": {"100"},
	}
	err := a.get(ctx, "/api/conversations/"+url.PathEscape(conversationID)+"/events/search", query, &page)
	if err != nil {
		return nil, err
	}
	for _, item := range page.Items {
		if item.ToolName != "finish" {
			continue
		}
		if arguments := json.RawMessage(item.ToolCall.Arguments); len(arguments) > 0 && json.Valid(arguments) {
			return arguments, nil
		}
		return item.Action, nil
	}
	return nil, nil
}

// bashEvent is a BashCommand or a BashOutput of the box.
type bashEvent struct {
	ID        string  `json:"id"`
	Command   string  `json:"command"`
	CommandID string  `json:"command_id"`
	Order     int     `json:"order"`
	ExitCode  *int    `json:"exit_code"`
	Stdout    *string `json:"stdout"`
	Stderr    *string `json:"stderr"`
	Timestamp string  `json:"timestamp"`
	Timeout   float64 `json:"timeout"` // of a command, in seconds
}

func (e bashEvent) output() CommandOutput {
	out := CommandOutput{ExitCode: e.ExitCode, Order: e.Order}
	if e.Stdout != nil {
		out.Stdout = *e.Stdout
	}
	if e.Stderr != nil {
		out.Stderr = *e.Stderr
	}
	return out
}

func (a Agent) bashEvents(ctx context.Context, query url.Values) (items []bashEvent, nextPage string, err error) {
	var page struct {
		Items []bashEvent `json:"items"`
		Next  *string     `json:"next_page_id"`
	}
	req := agentRequest{method: http.MethodGet, path: "/api/bash/bash_events/search", query: query, within: agentCall, limit: agentOutputBytes}
	if err := a.do(ctx, req, &page); err != nil {
		return nil, "", err
	}
	if page.Next != nil {
		nextPage = *page.Next
	}
	return page.Items, nextPage, nil
}
