package sandbox

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"automation/models"
)

const (
	// believedFor is how long a conversation counts as running that says nothing: longer, and its agent has died (a single call
	// of a model, or a build, takes hours at most).
	believedFor = 24 * time.Hour
	// commandSlack is added to the time that a command may take: the clock of the box is its own.
	commandSlack = 5 * time.Minute
)

// Work is what goes on in a box, as its agent server says.
type Work struct {
	Running string        // models.HeldAgent or models.HeldCommand; "": nothing
	Idle    time.Duration // since the last real work
}

// At is when the box was last at work.
func (w Work) At(now time.Time) time.Time {
	if w.Running != "" {
		return now
	}
	return now.Add(-w.Idle)
}

// Work asks what runs in the box, and else for how long it has been idle (S0-028, S3-003). The idle time alone does not tell: a
// long command, and a model that is thinking, do not move it. No question does either. A box that was at work within enough is
// not asked further.
func (a Agent) Work(ctx context.Context, now time.Time, enough time.Duration) (Work, error) {
	info, err := a.ServerInfo(ctx)
	if err != nil || info.IdleTime < enough {
		return Work{Idle: info.IdleTime}, err
	}
	w := Work{Idle: info.IdleTime}
	if info.IdleTime < believedFor {
		running, err := a.conversationRuns(ctx)
		if err != nil {
			return Work{}, err
		}
		if running {
			w.Running = models.HeldAgent
			return w, nil
		}
	}
	running, err := a.commandRuns(ctx, now)
	if err != nil {
		return Work{}, err
	}
	if running {
		w.Running = models.HeldCommand
	}
	return w, nil
}

// conversationRuns reports whether the agent of any conversation works. A server without conversations has none.
func (a Agent) conversationRuns(ctx context.Context) (bool, error) {
	var page struct {
		Items []struct {
			ExecutionStatus string `json:"execution_status"`
		} `json:"items"`
	}
	err := a.get(ctx, "/api/conversations/search", url.Values{"status": {"running"}, "limit": {"1"}}, &page)
	if answer, ok := errors.AsType[*AgentError](err); ok && answer.Status == http.StatusNotFound {
		return false, nil
	}
	return err == nil && len(page.Items) > 0 && page.Items[0].ExecutionStatus == "running", err
}

// commandPages bounds how many hundreds of commands are looked through, newest first.
const commandPages = 20

// commandRuns reports whether any command, of those whose time is not over, has not exited. One that runs for long, as the
// server of a customer does, may lie behind many that came after it.
func (a Agent) commandRuns(ctx context.Context, now time.Time) (bool, error) {
	query := url.Values{"kind__eq": {"BashCommand"}, "sort_order": {"TIMESTAMP_DESC"}, "limit": {"100"}}
	for range commandPages {
		commands, next, err := a.bashEvents(ctx, query)
		if err != nil {
			return false, err
		}
		for _, c := range commands {
			if c.over(now) {
				continue
			}
			out, err := a.LastOutput(ctx, c.ID)
			if err != nil {
				return false, err
			}
			if out.ExitCode == nil {
				return true, nil
			}
		}
		if next == "" {
			break
		}
		query.Set("page_id", next)
	}
	return false, nil
}

// over reports whether a command's time has passed: its server has ended it.
func (e bashEvent) over(now time.Time) bool {
	began, err := time.Parse(time.RFC3339, e.Timestamp)
	return err == nil && e.Timeout > 0 && now.After(began.Add(time.Duration(e.Timeout*float64(time.Second))+commandSlack))
}
