package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// The parts of a sweep that commands show.
type (
	sweepObject struct {
		ID        string      `json:"id"`
		Kind      string      `json:"kind"`
		State     string      `json:"state"`
		CreatedAt time.Time   `json:"created_at"`
		CreatedBy string      `json:"created_by"`
		ExpiresAt *time.Time  `json:"expires_at"`
		AppliedAt *time.Time  `json:"applied_at"`
		LeftOut   int         `json:"left_out"`
		Counts    sweepCounts `json:"counts"`
		Items     []sweepItem `json:"items"`
	}
	sweepCounts struct {
		Total    int `json:"total"`
		Planned  int `json:"planned"`
		Ordered  int `json:"ordered"`
		Kept     int `json:"skipped_kept"`
		Attached int `json:"skipped_attached"`
		Changed  int `json:"skipped_changed"`
		Gone     int `json:"gone"`
	}
	sweepItem struct {
		SandboxID  string    `json:"sandbox_id"`
		Automation string    `json:"automation_name"`
		Backend    string    `json:"backend"`
		DueAt      time.Time `json:"due_at"`
		SizeBytes  *int64    `json:"size_bytes"`
		Export     string    `json:"export"`
		Outcome    string    `json:"outcome"`
	}
)

func newSweep(io Streams) *cobra.Command {
	c := &cobra.Command{
		Use: "sweep", Short: "Plan which due boxes are deleted, apply exactly that plan, look back", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	as := outputFlag(c)
	c.AddCommand(newSweepPlan(io, as), newSweepApply(io, as), newSweepList(io, as), newSweepShow(io, as))
	return c
}

func newSweepPlan(io Streams, as *format) *cobra.Command {
	var within time.Duration
	var backend string
	c := &cobra.Command{
		Use: "plan", Short: "List the boxes that are due, or will be within a time; nothing is deleted", Args: cobra.NoArgs,
		Example: "  automation sweep plan\n  automation sweep plan --due-within 24h -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, _ []string) error {
			if within < 0 {
				return usageError{errors.New("--due-within: want 0 or more")}
			}
			body := map[string]any{"due_within_seconds": int64(within / time.Second)}
			if backend != "" {
				body["backend"] = backend
			}
			var raw json.RawMessage
			if err := s.json(ctx, http.MethodPost, "/sweeps/plan", body, &raw); err != nil {
				return err
			}
			return s.showSweep(raw)
		}),
	}
	c.Flags().DurationVar(&within, "due-within", 0, "also what is due within this time, e.g. 24h")
	c.Flags().StringVar(&backend, "backend", "", "only of this backend")
	return c
}

func newSweepApply(io Streams, as *format) *cobra.Command {
	var confirm string
	c := &cobra.Command{
		Use: "apply PLAN", Short: "Delete what a plan lists and is still so; whatever has changed since is left alone",
		Args:    cobra.ExactArgs(1),
		Example: "  automation sweep apply 019f0f5e-8d5a\n  automation sweep apply 019f0f5e-8d5a --confirm history-will-be-lost",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			id, err := s.sweep(ctx, args[0])
			if err != nil {
				return err
			}
			var body any
			if confirm != "" {
				body = map[string]any{"confirm": confirm}
			}
			var raw json.RawMessage
			if err := s.json(ctx, http.MethodPost, "/sweeps/"+id+"/apply", body, &raw); err != nil {
				return err
			}
			return s.showSweep(raw)
		}),
	}
	c.Flags().StringVar(&confirm, "confirm", "", "history-will-be-lost, where a box is not due yet")
	return c
}

func newSweepList(io Streams, as *format) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List plans, and passes of the janitor that deleted something, newest first",
		Args:    cobra.NoArgs,
		Example: "  automation sweep ls\n  automation sweep ls --limit 5 -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, _ []string) error {
			if limit < 1 {
				return usageError{errors.New("--limit: want more than 0")}
			}
			sweeps, p, err := listed[sweepObject](ctx, s.client, "/sweeps", url.Values{}, "sweeps", limit)
			if err != nil {
				return err
			}
			return s.show(map[string]any{"sweeps": p.items, "total": p.total}, func() error {
				return s.table(s.sweepTable(sweeps), "no sweeps")
			})
		}),
	}
	c.Flags().IntVar(&limit, "limit", pageSize, "at most so many")
	return c
}

func newSweepShow(io Streams, as *format) *cobra.Command {
	return &cobra.Command{
		Use: "show SWEEP", Aliases: []string{"get"}, Short: "Show one sweep with its boxes", Args: cobra.ExactArgs(1),
		Example: "  automation sweep show 019f0f5e-8d5a\n  automation sweep show 019f0f5e-8d5a -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			id, err := s.sweep(ctx, args[0])
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := s.get(ctx, "/sweeps/"+id, &raw); err != nil {
				return err
			}
			return s.showSweep(raw)
		}),
	}
}

// sweep finds a sweep by its id or the beginning of it.
func (c *client) sweep(ctx context.Context, word string) (string, error) {
	if isID(word) {
		return strings.ToLower(word), nil
	}
	sweeps, _, err := listed[sweepObject](ctx, c, "/sweeps", url.Values{}, "sweeps", mostSearched)
	if err != nil {
		return "", err
	}
	var all []candidate
	for _, one := range sweeps {
		all = append(all, candidate{id: one.ID})
	}
	return pick(word, "sweep", all, nil)
}

func (s *session) sweepTable(sweeps []sweepObject) *table {
	var ids []string
	for _, one := range sweeps {
		ids = append(ids, one.ID)
	}
	short := shorten(ids)
	t := newTable("SWEEP", "KIND", "STATE", "WHEN", "BOXES", "ORDERED", "SKIPPED", "GONE", "WHO")
	t.text, t.rest = []string{"WHO"}, []string{"WHO", "GONE", "KIND"}
	for _, one := range sweeps {
		n := one.Counts
		t.row(head(one.ID, short), one.Kind, one.State, ago(&one.CreatedAt, s.now), strconv.Itoa(n.Total), strconv.Itoa(n.Ordered),
			strconv.Itoa(n.Kept+n.Attached+n.Changed), strconv.Itoa(n.Gone), one.CreatedBy)
	}
	return t
}

// showSweep shows the answer of a route that gives one sweep: its boxes, and on standard error what to do next.
func (s *session) showSweep(raw json.RawMessage) error {
	return s.show(raw, func() error {
		all, err := decode[sweepObject]([]json.RawMessage{raw})
		if err != nil {
			return err
		}
		one := all[0]
		if err := s.table(s.itemTable(one.Items), "no boxes are due"); err != nil {
			return err
		}
		if one.LeftOut > 0 {
			s.done("%d more boxes are due than one plan lists", one.LeftOut)
		}
		switch n := one.Counts; one.State {
		case "planned":
			s.done("plan %s, good %s: automation sweep apply %s", one.ID, until(one.ExpiresAt, s.now), one.ID)
		case "applied":
			s.done("ordered deleted: %d; left alone: %d kept, %d in use, %d changed; gone already: %d",
				n.Ordered, n.Kept, n.Attached, n.Changed, n.Gone)
		default:
			s.done("%s", one.State)
		}
		return nil
	})
}

func (s *session) itemTable(items []sweepItem) *table {
	var ids []string
	for _, i := range items {
		ids = append(ids, i.SandboxID)
	}
	short := shorten(ids)
	t := newTable("BOX", "AUTOMATION", "BACKEND", "DUE", "SIZE", "HISTORY", "OUTCOME")
	t.text, t.rest = []string{"AUTOMATION"}, []string{"SIZE", "BACKEND"}
	for _, i := range items {
		bytes := ""
		if i.SizeBytes != nil {
			bytes = size(*i.SizeBytes)
		}
		t.row(head(i.SandboxID, short), i.Automation, i.Backend, until(&i.DueAt, s.now), bytes, i.Export, i.Outcome)
	}
	return t
}
