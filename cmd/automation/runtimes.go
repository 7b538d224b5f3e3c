package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// runtimeObject is what commands show of a conversation that has a box of its own.
type runtimeObject struct {
	ConversationID      string     `json:"conversation_id"`
	Backend             string     `json:"backend"`
	Workspace           string     `json:"workspace"`
	State               string     `json:"state"`
	LastAccessAt        *time.Time `json:"last_access_at"`
	EvictAt             *time.Time `json:"evict_at"`
	NotEvictableBecause string     `json:"not_evictable_because"`
	Sandbox             *boxObject `json:"sandbox"`
}

func newRuntimes(io Streams) *cobra.Command {
	c := &cobra.Command{
		Use: "runtimes", Short: "Open, list and evict the boxes of conversations", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	as := outputFlag(c)
	c.AddCommand(newRuntimeList(io, as), newRuntimeOpen(io, as), newRuntimeEvict(io, as))
	return c
}

func newRuntimeList(io Streams, as *format) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List conversations that have a box, and why a running one is not evicted", Args: cobra.NoArgs,
		Example: "  automation runtimes ls\n  automation runtimes ls -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, _ []string) error {
			if limit < 1 {
				return usageError{errors.New("--limit: want more than 0")}
			}
			all, p, err := listed[runtimeObject](ctx, s.client, "/runtimes", url.Values{}, "runtimes", limit)
			if err != nil {
				return err
			}
			return s.show(map[string]any{"runtimes": p.items, "total": p.total}, func() error {
				return s.table(s.runtimeTable(all), "no conversation has a box")
			})
		}),
	}
	c.Flags().IntVar(&limit, "limit", pageSize, "at most so many")
	return c
}

func (s *session) runtimeTable(all []runtimeObject) *table {
	t := newTable("CONVERSATION", "STATE", "BOX", "ACCESSED", "EVICTED", "HELD BECAUSE", "WORKSPACE", "BACKEND")
	t.text, t.rest = []string{"HELD BECAUSE", "WORKSPACE"}, []string{"BACKEND", "WORKSPACE", "BOX"}
	for _, r := range all {
		box := ""
		if r.Sandbox != nil {
			box = r.Sandbox.ID
		}
		t.row(r.ConversationID, r.State, box, ago(r.LastAccessAt, s.now), until(r.EvictAt, s.now), r.NotEvictableBecause, r.Workspace, r.Backend)
	}
	return t
}

func newRuntimeOpen(io Streams, as *format) *cobra.Command {
	var workspace string
	c := &cobra.Command{
		Use: "open [CONVERSATION]", Short: "Make or wake the box of a conversation; without an id, of a new one", Args: cobra.MaximumNArgs(1),
		Long: "The box of an evicted conversation comes back with its files, its workspace and its keys. A workspace of your own is\n" +
			"mounted, and never reclaimed or removed; where the service allows them is its AUTOMATION_DOCKER_WORKSPACES.",
		Example: "  automation runtimes open\n  automation runtimes open 7d1f6a52-0d8e-4d0e-9a53-1c7b6d1f0c11 --workspace ~/src/project",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			id, body := uuid.NewString(), map[string]any{}
			if len(args) > 0 {
				id = args[0]
			}
			if workspace != "" {
				path, err := filepath.Abs(workspace)
				if err != nil {
					return usageError{err}
				}
				body["workspace"] = path
			}
			return s.changeRuntime(ctx, http.MethodPut, id, "", body)
		}),
	}
	c.Flags().StringVar(&workspace, "workspace", "", "a checkout of your own on the service's machine")
	return c
}

func newRuntimeEvict(io Streams, as *format) *cobra.Command {
	return &cobra.Command{
		Use: "evict CONVERSATION…", Short: "Suspend the boxes of conversations now, unless somebody is in them", Args: cobra.MinimumNArgs(1),
		Example: "  automation runtimes evict 7d1f6a52\n  automation runtimes evict 7d1f6a52 0b6c2d11 -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			return s.each(args, "evicting", func(word string) (string, error) {
				id, err := s.conversation(ctx, word)
				if err != nil {
					return "", err
				}
				return id, s.json(ctx, http.MethodPost, "/runtimes/"+id+"/evict", nil, nil)
			})
		}),
	}
}

// conversation finds the one that word begins the id of.
func (s *session) conversation(ctx context.Context, word string) (string, error) {
	all, _, err := listed[runtimeObject](ctx, s.client, "/runtimes", url.Values{}, "runtimes", mostSearched)
	if err != nil {
		return "", err
	}
	candidates := make([]candidate, len(all))
	for i, r := range all {
		candidates[i] = candidate{id: r.ConversationID}
	}
	return pick(word, "conversation", candidates, nil)
}

// changeRuntime asks for a change of one conversation's box and shows what is so then.
func (s *session) changeRuntime(ctx context.Context, method, id, path string, body any) error {
	var raw json.RawMessage
	if err := s.json(ctx, method, "/runtimes/"+url.PathEscape(id)+path, body, &raw); err != nil {
		return err
	}
	return s.show(raw, func() error {
		var r runtimeObject
		if err := json.Unmarshal(raw, &r); err != nil {
			return err
		}
		return s.table(s.runtimeTable([]runtimeObject{r}), "")
	})
}
