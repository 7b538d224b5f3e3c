package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newRuns(io Streams) *cobra.Command {
	c := &cobra.Command{
		Use: "runs", Short: "List, show, follow and cancel runs", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	as := outputFlag(c)
	c.AddCommand(newRunsList(io, as), newRunsShow(io, as), newRunsLogs(io, as), newRunsCancel(io, as), newRunsWatch(io, as))
	return c
}

func newRunsList(io Streams, as *format) *cobra.Command {
	var statuses []string
	var automation string
	var since time.Duration
	var limit int
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List runs, newest first", Args: cobra.NoArgs,
		Example: "  automation runs ls --status failed --since 24h\n  automation runs ls --automation 'nightly report' -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, _ []string) error {
			query := url.Values{}
			for _, status := range statuses {
				query.Add("status", strings.ToUpper(status))
			}
			if automation != "" {
				id, err := s.automation(ctx, automation)
				if err != nil {
					return err
				}
				query.Set("automation_id", id)
			}
			return s.listRuns(ctx, query, since, limit)
		}),
	}
	c.Flags().StringSliceVar(&statuses, "status", nil, "only these: pending, running, completed, failed, cancelled, skipped")
	c.Flags().StringVar(&automation, "automation", "", "only of this one: its name, or its id or the beginning of it")
	c.Flags().DurationVar(&since, "since", 0, "only what was created within this time, e.g. 24h")
	c.Flags().IntVar(&limit, "limit", pageSize, "at most so many")
	return c
}

func (s *session) listRuns(ctx context.Context, query url.Values, since time.Duration, limit int) error {
	if limit < 1 || since < 0 {
		return usageError{errors.New("--limit and --since: want more than 0")}
	}
	runs, p, err := listed[runObject](ctx, s.client, "/runs", query, "runs", limit)
	if err != nil {
		return err
	}
	for i, r := range runs {
		if since > 0 && s.now.Sub(r.CreatedAt) > since {
			runs, p.items = runs[:i], p.items[:i]
			break
		}
	}
	return s.show(map[string]any{"runs": p.items, "total": p.total}, func() error {
		names, err := s.names(ctx)
		if err != nil {
			return err
		}
		return s.table(s.runTable(runs, names), "no runs")
	})
}

func (s *session) runTable(runs []runObject, names map[string]string) *table {
	var ids, boxes []string
	for _, r := range runs {
		ids = append(ids, r.ID)
		if r.Sandbox != nil {
			boxes = append(boxes, r.Sandbox.ID)
		}
	}
	short, shortBox := shorten(ids), shorten(boxes)
	t := newTable("RUN", "AUTOMATION", "STATUS", "TRIGGER", "STARTED", "DURATION", "BOX", "DUE", "ERROR")
	t.text, t.rest = []string{"AUTOMATION", "ERROR"}, []string{"BOX", "TRIGGER", "DURATION", "DUE"}
	for _, r := range runs {
		box := ""
		if r.Sandbox != nil {
			box = head(r.Sandbox.ID, shortBox)
		}
		t.row(head(r.ID, short), nameOf(r.AutomationID, names), r.Status, r.TriggerSource, ago(r.StartedAt, s.now),
			s.duration(r), box, until(r.Cleanup.DueAt, s.now), r.ErrorDetail)
	}
	return t
}

// nameOf is the name of an automation; of one that is deleted, the beginning of its id.
func nameOf(id string, names map[string]string) string {
	if name := names[id]; name != "" {
		return name
	}
	return head(id, leastID)
}

// duration is how long a run took, or takes so far.
func (s *session) duration(r runObject) string {
	switch {
	case r.StartedAt == nil:
		return ""
	case r.CompletedAt == nil:
		return span(s.now.Sub(*r.StartedAt))
	}
	return span(r.CompletedAt.Sub(*r.StartedAt))
}

func newRunsShow(io Streams, as *format) *cobra.Command {
	return &cobra.Command{
		Use: "show RUN", Aliases: []string{"get"}, Short: "Show one run", Args: cobra.ExactArgs(1),
		Example: "  automation runs show 019f0f5e-8d5a\n  automation runs show 'nightly report' -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			id, err := s.run(ctx, args[0])
			if err != nil {
				return err
			}
			raw, r, err := s.readRun(ctx, id)
			if err != nil {
				return err
			}
			return s.show(raw, func() error { return s.showRun(ctx, r) })
		}),
	}
}

// readRun reads a run, as it is and decoded.
func (s *session) readRun(ctx context.Context, id string) (raw json.RawMessage, r runObject, err error) {
	if err = s.get(ctx, "/runs/"+id, &raw); err != nil {
		return nil, r, err
	}
	all, err := decode[runObject]([]json.RawMessage{raw})
	if err != nil {
		return nil, r, err
	}
	return raw, all[0], nil
}

func (s *session) showRun(ctx context.Context, r runObject) error {
	names, err := s.names(ctx)
	if err != nil {
		return err
	}
	box, code, cost := "", "", ""
	if r.Sandbox != nil {
		box = r.Sandbox.ID + " (" + r.Sandbox.Backend + ", " + r.Sandbox.Observed + ")"
	}
	if r.ExitCode != nil {
		code = strconv.Itoa(*r.ExitCode)
	}
	if r.Cost != nil {
		cost = fmt.Sprintf("%.4f", *r.Cost)
	}
	return facts(s.io.Out, "run", r.ID, "automation", nameOf(r.AutomationID, names)+" ("+r.AutomationID+")",
		"status", r.Status, "phase", r.CurrentPhase, "trigger", r.TriggerSource, "started", ago(r.StartedAt, s.now),
		"ended", ago(r.CompletedAt, s.now), "duration", s.duration(r), "exit code", code, "cost", cost,
		"conversation", r.ConversationID, "box", box, "cleanup", s.cleanup(r.Cleanup), "output", storedWord(r.HasLogs),
		"error", r.ErrorDetail)
}

func storedWord(stored bool) string {
	if stored {
		return "stored"
	}
	return "not stored"
}

// cleanup says when a box goes and why.
func (s *session) cleanup(c cleanupObject) string {
	text := c.State
	if c.DueAt != nil {
		text += ", " + until(c.DueAt, s.now)
	}
	if c.Source != "" {
		text += " (" + c.Source + ")"
	}
	if c.LastError != "" {
		text += fmt.Sprintf("; try %d: %s", c.Attempts, c.LastError)
	}
	return text
}

func newRunsCancel(io Streams, as *format) *cobra.Command {
	return &cobra.Command{
		Use: "cancel RUN…", Short: "Cancel runs; their boxes are deleted at once", Args: cobra.MinimumNArgs(1),
		Example: "  automation runs cancel 019f0f5e-8d5a\n  automation runs cancel 019f0f5e-8d5a 019f0f5e-9c11 -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			return s.each(args, "cancelled", func(word string) (string, error) {
				id, err := s.run(ctx, word)
				if err != nil {
					return "", err
				}
				return id, s.json(ctx, http.MethodPost, "/runs/"+id+"/cancel", nil, nil)
			})
		}),
	}
}
