package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

// newBoxOrder makes pause and resume.
func newBoxOrder(io Streams, as *format, verb, short string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " BOX…", Short: short, Args: cobra.MinimumNArgs(1),
		Example: "  automation box " + verb + " 019f0f5e-8d5a\n  automation box " + verb + " 019f0f5e-8d5a 019f0f5e-9c11 -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			return s.each(args, "ordered "+verb+" of", func(word string) (string, error) {
				id, err := s.box(ctx, word)
				if err != nil {
					return "", err
				}
				return id, s.json(ctx, http.MethodPost, "/sandboxes/"+id+"/"+verb, nil, nil)
			})
		}),
	}
}

func newBoxExtend(io Streams, as *format) *cobra.Command {
	var until string
	c := &cobra.Command{
		Use: "extend BOX +SPAN", Short: "Move the due date of a box: by a time span, or to a date with --until",
		Args:    cobra.RangeArgs(1, 2),
		Example: "  automation box extend 019f0f5e-8d5a +2h30m\n  automation box extend 019f0f5e-8d5a --until 2026-12-24T18:00:00Z",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			body, err := extension(args[1:], until)
			if err != nil {
				return err
			}
			return s.change(ctx, http.MethodPost, args[0], "/extend", body)
		}),
	}
	c.Flags().StringVar(&until, "until", "", "the new due date, RFC 3339")
	return c
}

// extension is the body of an extend.
func extension(spans []string, until string) (map[string]any, error) {
	switch {
	case len(spans) > 0 && until != "", len(spans) == 0 && until == "":
		return nil, usageError{errors.New("want either a time span or --until")}
	case until != "":
		at, err := parseMoment(until)
		return map[string]any{"until": at}, err
	}
	d, err := parseSpan(spans[0])
	return map[string]any{"seconds": int64(d / time.Second)}, err
}

// change asks for a change of one box and shows the box as it is then.
func (s *session) change(ctx context.Context, method, word, path string, body any) error {
	id, err := s.box(ctx, word)
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := s.json(ctx, method, "/sandboxes/"+id+path, body, &raw); err != nil {
		return err
	}
	return s.showBox(ctx, raw)
}

func newBoxKeep(io Streams, as *format) *cobra.Command {
	var reason, until string
	c := &cobra.Command{
		Use: "keep BOX", Short: "Keep a box: it has no due date until unkeep; with --until it is due then", Args: cobra.ExactArgs(1),
		Example: "  automation box keep 019f0f5e-8d5a --reason 'flaky test'\n  automation box keep 019f0f5e-8d5a --until 2026-12-24T18:00:00Z",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			body := map[string]any{}
			if reason != "" {
				body["reason"] = reason
			}
			if until != "" {
				at, err := parseMoment(until)
				if err != nil {
					return err
				}
				body["until"] = at
			}
			return s.change(ctx, http.MethodPut, args[0], "/keep", body)
		}),
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for others")
	c.Flags().StringVar(&until, "until", "", "until when, RFC 3339")
	return c
}

func newBoxUnkeep(io Streams, as *format) *cobra.Command {
	return &cobra.Command{
		Use: "unkeep BOX", Short: "Stop keeping a box: it is due after the configured delay from now", Args: cobra.ExactArgs(1),
		Example: "  automation box unkeep 019f0f5e-8d5a\n  automation box unkeep 019f0f5e-8d5a -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			return s.change(ctx, http.MethodDelete, args[0], "/keep", nil)
		}),
	}
}

func newBoxReclaim(io Streams, as *format) *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use: "reclaim BOX", Short: "Have a running box free files that can be rebuilt", Args: cobra.ExactArgs(1),
		Example: "  automation box reclaim 019f0f5e-8d5a --dry-run\n  automation box reclaim 019f0f5e-8d5a -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			id, err := s.box(ctx, args[0])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, boxesWithin)
			defer cancel()
			path := "/sandboxes/" + id + "/reclaim"
			if dry {
				path += "?dry_run=true"
			}
			var raw json.RawMessage
			if err := s.json(ctx, http.MethodPost, path, nil, &raw); err != nil {
				return err
			}
			return s.show(raw, func() error { return s.showReclaim(raw, dry) })
		}),
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only plan")
	return c
}

// showReclaim shows the box's own answer.
func (s *session) showReclaim(raw json.RawMessage, dry bool) error {
	var done struct {
		FreedBytes int64 `json:"freed_bytes"`
		Items      []struct {
			Tier    string `json:"tier"`
			Path    string `json:"path"`
			Bytes   int64  `json:"bytes"`
			Outcome string `json:"outcome"`
			Reason  string `json:"reason"`
		} `json:"items"`
	}
	if err := json.Unmarshal(raw, &done); err != nil {
		return err
	}
	t := newTable("OUTCOME", "TIER", "BYTES", "PATH", "WHY")
	t.text, t.rest = []string{"PATH", "WHY"}, []string{"TIER"}
	planned := int64(0)
	for _, item := range done.Items {
		t.row(item.Outcome, item.Tier, size(item.Bytes), item.Path, item.Reason)
		if item.Outcome == "planned" {
			planned += item.Bytes
		}
	}
	if err := s.table(t, "nothing to reclaim"); err != nil {
		return err
	}
	if dry {
		s.done("would free %s", size(planned))
		return nil
	}
	s.done("freed %s", size(done.FreedBytes))
	return nil
}

func newBoxRemove(io Streams, as *format) *cobra.Command {
	var confirm string
	var noExport bool
	c := &cobra.Command{
		Use: "rm BOX…", Aliases: []string{"delete"}, Short: "Delete boxes, which is final", Args: cobra.MinimumNArgs(1),
		Long: "Deletes boxes. The conversation in a box goes with it: where no current export of it exists, the service refuses\n" +
			"(exit code 5) unless --confirm history-will-be-lost says that this is meant. Nothing is asked for.",
		Example: "  automation box rm 019f0f5e-8d5a --confirm history-will-be-lost\n  automation box rm 019f0f5e-8d5a 019f0f5e-9c11 -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			query := url.Values{}
			if confirm != "" {
				query.Set("confirm", confirm)
			}
			if noExport {
				query.Set("export", "skip")
			}
			return s.each(args, "ordered deletion of", func(word string) (string, error) {
				id, err := s.box(ctx, word)
				if err != nil {
					return "", err
				}
				return id, s.json(ctx, http.MethodDelete, "/sandboxes/"+id+"?"+query.Encode(), nil, nil)
			})
		}),
	}
	c.Flags().StringVar(&confirm, "confirm", "", "history-will-be-lost")
	c.Flags().BoolVar(&noExport, "no-export", false, "do not export the history first")
	return c
}
