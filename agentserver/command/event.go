package command

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kinds of events.
const (
	KindCommand = "BashCommand"
	KindOutput  = "BashOutput"
)

// timestampFormat is how the contract writes a moment: UTC, microseconds, Z.
const timestampFormat = "2006-01-02T15:04:05.000000Z"

// Event is a command that was started or a piece of what it printed. No two events have the same At.
type Event struct {
	ID       string
	At       time.Time
	Order    int  // of a piece, from 0; -1 of the command itself
	ExitCode *int // of the last piece

	job      *job
	from, to int64 // lines of the piece
}

// Kind is KindCommand or KindOutput.
func (e Event) Kind() string {
	if e.Order < 0 {
		return KindCommand
	}
	return KindOutput
}

// Started is a command in the shape of the contract.
type Started struct {
	Command   string  `json:"command"`
	Cwd       *string `json:"cwd"`
	Timeout   int     `json:"timeout"`
	ID        string  `json:"id"`
	Timestamp string  `json:"timestamp"`
	Kind      string  `json:"kind"`
}

// Printed is a piece of output in the shape of the contract.
type Printed struct {
	ID        string  `json:"id"`
	Timestamp string  `json:"timestamp"`
	CommandID string  `json:"command_id"`
	Order     int     `json:"order"`
	ExitCode  *int    `json:"exit_code"`
	Stdout    *string `json:"stdout"`
	Stderr    *string `json:"stderr"`
	Kind      string  `json:"kind"`
}

// Wire is the event in the shape of the contract, its text read from disk.
func (e Event) Wire() any {
	if e.Kind() == KindCommand {
		return e.started()
	}
	return e.printed()
}

func (e Event) started() Started {
	s := e.job.spec
	return Started{s.Command, s.Cwd, s.Timeout, e.ID, e.At.Format(timestampFormat), KindCommand}
}

func (e Event) printed() Printed {
	stdout, stderr, err := e.job.output.text(e.from, e.to)
	if err != nil {
		e.job.runner.log.Warn("output of a command cannot be read", "command_id", e.job.id, "error", err)
	}
	return Printed{e.ID, e.At.Format(timestampFormat), e.job.id, e.Order, e.ExitCode, stdout, stderr, KindOutput}
}

// Query selects events; zero fields select all.
type Query struct {
	Kind       string
	CommandID  string // outputs of this command only, not the command itself
	Since      time.Time
	Before     time.Time
	OrderAbove *int // outputs of a higher order only
	Descending bool
	PageID     string // from an earlier page; one that says nothing starts from the beginning
	Limit      int
}

func (q Query) matches(e Event) bool {
	switch {
	case q.Kind != "" && e.Kind() != q.Kind,
		q.CommandID != "" && (e.Order < 0 || e.job.id != q.CommandID),
		q.OrderAbove != nil && e.Order <= max(*q.OrderAbove, -1),
		!q.Since.IsZero() && e.At.Before(q.Since),
		!q.Before.IsZero() && !e.At.Before(q.Before):
		return false
	}
	return true
}

// Search returns a page of events and the id of the next page, "" at the end.
func (r *Runner) Search(q Query) (page []Event, next string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	start, found := pageStart(q.PageID)
	i, step := 0, 1
	if q.Descending {
		i, step = len(r.events)-1, -1
	}
	for ; i >= 0 && i < len(r.events); i += step {
		e := r.events[i]
		before := found && (e.At.Before(start) && step > 0 || e.At.After(start) && step < 0)
		if before || !q.matches(e) || e.expired() {
			continue
		}
		if len(page) == q.Limit {
			return page, pageID(e)
		}
		page = append(page, e)
	}
	return page, ""
}

// expired says that the lines of a piece have been dropped, and that it tells nothing else.
func (e Event) expired() bool {
	return e.Order >= 0 && e.ExitCode == nil && e.to < e.job.output.firstKept()
}

// Event returns the event with this id.
func (r *Runner) Event(id string) (Event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.events, func(e Event) bool { return e.ID == id })
	if i < 0 {
		return Event{}, false
	}
	return r.events[i], true
}

// pageID names the page that begins with an event.
func pageID(e Event) string { return strconv.FormatInt(e.At.UnixMicro(), 10) + "_" + e.ID }

func pageStart(id string) (time.Time, bool) {
	digits, _, _ := strings.Cut(id, "_")
	micros, err := strconv.ParseInt(digits, 10, 64)
	return time.UnixMicro(micros), err == nil
}
