package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newSandboxes(io Streams) *cobra.Command {
	c := &cobra.Command{
		Use: "sandboxes", Aliases: []string{"box"}, Short: "List, show, pause, resume, keep, extend and delete sandboxes (boxes)",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	as := outputFlag(c)
	c.AddCommand(newBoxList(io, as), newBoxShow(io, as), newBoxEvents(io, as), newBoxOrder(io, as, "pause", "Pause boxes"),
		newBoxOrder(io, as, "resume", "Wake boxes; that does not move their due date"), newBoxExtend(io, as), newBoxKeep(io, as),
		newBoxUnkeep(io, as), newBoxReclaim(io, as), newBoxExport(io, as), newBoxRemove(io, as))
	return c
}

// undeleted are the states of boxes that are not gone.
var undeleted = []string{"provisioning", "running", "suspended", "deleting", "missing", "failed"}

func newBoxList(io Streams, as *format) *cobra.Command {
	var states []string
	var backend, dueWithin string
	var attention, all bool
	var limit int
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List boxes, newest first; those that are gone only with --all", Args: cobra.NoArgs,
		Example: "  automation box ls --due-within 24h\n  automation box ls --needs-attention -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, _ []string) error {
			if limit < 1 {
				return usageError{errors.New("--limit: want more than 0")}
			}
			query := url.Values{}
			switch {
			case len(states) > 0:
				query["state"] = states
			case !all:
				query["state"] = undeleted
			}
			for name, value := range map[string]string{"backend": backend, "due_within": dueWithin} {
				if value != "" {
					query.Set(name, value)
				}
			}
			if attention {
				query.Set("needs_attention", "true")
			}
			return s.listBoxes(ctx, query, limit)
		}),
	}
	c.Flags().StringSliceVar(&states, "state", nil, "only these: provisioning, running, suspended, deleting, deleted, missing, failed")
	c.Flags().StringVar(&backend, "backend", "", "only of this backend")
	c.Flags().StringVar(&dueWithin, "due-within", "", "only what is due within this time, e.g. 24h")
	c.Flags().BoolVar(&attention, "needs-attention", false, "only what needs a person")
	c.Flags().BoolVarP(&all, "all", "a", false, "those that are gone too")
	c.Flags().IntVar(&limit, "limit", pageSize, "at most so many")
	return c
}

func (s *session) listBoxes(ctx context.Context, query url.Values, limit int) error {
	boxes, p, err := listed[boxObject](ctx, s.client, "/sandboxes", query, "sandboxes", limit)
	if err != nil {
		return err
	}
	return s.show(map[string]any{"sandboxes": p.items, "total": p.total}, func() error {
		names, err := s.names(ctx)
		if err != nil {
			return err
		}
		return s.table(s.boxTable(boxes, names), "no boxes")
	})
}

func (s *session) boxTable(boxes []boxObject, names map[string]string) *table {
	var ids, runs []string
	for _, b := range boxes {
		ids, runs = append(ids, b.ID), append(runs, b.RunID)
	}
	short, shortRun := shorten(ids), shorten(runs)
	t := newTable("BOX", "AUTOMATION", "RUN", "STATE", "AGE", "PAUSED", "DUE", "KEPT", "BACKEND", "ATTENTION")
	t.text, t.rest = []string{"AUTOMATION", "KEPT", "ATTENTION"}, []string{"RUN", "BACKEND", "AGE", "KEPT", "PAUSED"}
	for _, b := range boxes {
		kept := ""
		if b.Kept != nil {
			kept = b.Kept.Reason
			if kept == "" {
				kept = "yes"
			}
		}
		t.row(head(b.ID, short), nameOf(b.AutomationID, names), head(b.RunID, shortRun), boxState(b), span(s.now.Sub(b.CreatedAt)),
			strings.TrimSuffix(ago(b.SuspendedAt, s.now), " ago"), until(b.Cleanup.DueAt, s.now), kept, b.Backend, b.NeedsAttention)
	}
	return t
}

// boxState is what is seen, and what is wanted where that differs.
func boxState(b boxObject) string {
	if b.Desired == b.Observed || b.Observed == "deleted" {
		return b.Observed
	}
	return b.Observed + " → " + b.Desired
}

func newBoxShow(io Streams, as *format) *cobra.Command {
	return &cobra.Command{
		Use: "show BOX", Aliases: []string{"get"}, Short: "Show one box", Args: cobra.ExactArgs(1),
		Example: "  automation box show 019f0f5e-8d5a\n  automation box show 'nightly report' -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			id, err := s.box(ctx, args[0])
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := s.get(ctx, "/sandboxes/"+id, &raw); err != nil {
				return err
			}
			return s.showBox(ctx, raw)
		}),
	}
}

// showBox shows the answer of a route that gives one box.
func (s *session) showBox(ctx context.Context, raw json.RawMessage) error {
	return s.show(raw, func() error {
		all, err := decode[boxObject]([]json.RawMessage{raw})
		if err != nil {
			return err
		}
		names, err := s.names(ctx)
		if err != nil {
			return err
		}
		return s.writeBox(all[0], names)
	})
}

func (s *session) writeBox(b boxObject, names map[string]string) error {
	kept, freed, memory := "", "", ""
	if b.Kept != nil {
		kept = strings.TrimSpace("by " + b.Kept.By + ", " + ago(&b.Kept.At, s.now) + " " + b.Kept.Reason)
	}
	if b.ReclaimedBytes > 0 {
		freed = size(b.ReclaimedBytes)
	}
	if b.Observed == "suspended" {
		memory = map[bool]string{true: "kept", false: "lost; the disk is kept"}[b.MemoryKept]
	}
	return facts(s.io.Out, "box", b.ID, "automation", nameOf(b.AutomationID, names), "run", b.RunID, "backend", b.Backend,
		"provider id", b.ProviderID, "state", boxState(b), "seen", ago(b.ObservedAt, s.now),
		"ordered", strings.TrimSpace(fmt.Sprintf("%s by %s: %s", ago(b.OrderedAt, s.now), b.OrderedBy, b.OrderReason)),
		"created", ago(&b.CreatedAt, s.now), "paused", ago(b.SuspendedAt, s.now), "memory", memory,
		"last access", ago(b.LastAccessAt, s.now), "deleted", ago(b.DeletedAt, s.now), "cleanup", s.cleanup(b.Cleanup),
		"kept", kept, "provider expires", until(b.ExpiresAt, s.now), "billed", strings.TrimSpace(b.Billed+" "+b.BilledDetail),
		"caches freed", freed, "export", b.Export.summary(s.now), "note", b.Note, "needs attention", b.NeedsAttention)
}

func newBoxEvents(io Streams, as *format) *cobra.Command {
	return &cobra.Command{
		Use: "events BOX", Short: "Tell what happened to a box, who did it and why", Args: cobra.ExactArgs(1),
		Example: "  automation box events 019f0f5e-8d5a\n  automation box events 019f0f5e-8d5a -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			id, err := s.box(ctx, args[0])
			if err != nil {
				return err
			}
			events, p, err := listed[eventObject](ctx, s.client, "/sandboxes/"+id+"/events", url.Values{}, "events", mostSearched)
			if err != nil {
				return err
			}
			return s.show(map[string]any{"events": p.items, "total": p.total}, func() error {
				return s.table(s.eventTable(events), "no events")
			})
		}),
	}
}

func (s *session) eventTable(events []eventObject) *table {
	t := newTable("WHEN", "WHAT", "OUTCOME", "WHO", "TOOK", "BYTES", "WHY")
	t.text, t.rest = []string{"WHO", "WHY"}, []string{"TOOK", "BYTES", "OUTCOME"}
	for _, e := range events {
		bytes, took := "", ""
		if e.Bytes > 0 {
			bytes = size(e.Bytes)
		}
		if e.DurationMS > 0 {
			took = (time.Duration(e.DurationMS) * time.Millisecond).Round(10 * time.Millisecond).String()
		}
		t.row(ago(&e.At, s.now), e.What, e.Outcome, e.Actor, took, bytes, e.Reason)
	}
	return t
}

// parseSpan reads a time span with a unit, such as +2h30m or 3d.
func parseSpan(word string) (time.Duration, error) {
	wrong := usageError{fmt.Errorf("%q: want a time span with a unit, e.g. +2h30m or +3d", word)}
	rest := strings.TrimPrefix(word, "+")
	var days time.Duration
	if number, after, found := strings.Cut(rest, "d"); found {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return 0, wrong
		}
		days, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || d+days < time.Second {
		return 0, wrong
	}
	return days + d, nil
}

// parseMoment reads the value of --until.
func parseMoment(word string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, word)
	if err != nil {
		return at, usageError{fmt.Errorf("--until %q: want a time such as 2026-12-24T18:00:00Z", word)}
	}
	return at, nil
}
