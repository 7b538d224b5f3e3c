package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// keyObject is what commands show of a key.
type keyObject struct {
	ID          string     `json:"id"`
	Kind        string     `json:"kind"`
	Name        string     `json:"name"`
	Start       string     `json:"start"`
	Permissions []string   `json:"permissions"`
	Ineffective []string   `json:"ineffective"`
	ExpiresAt   *time.Time `json:"expires_at"`
	RevokedAt   *time.Time `json:"revoked_at"`
	LastUsedAt  *time.Time `json:"last_used_at"`
	CreatedAt   time.Time  `json:"created_at"`
	Key         string     `json:"key"`
}

func newKeys(io Streams) *cobra.Command {
	c := &cobra.Command{
		Use: "keys", Short: "Make, list and revoke the keys by which customers reach the agents in their boxes", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	as := outputFlag(c)
	c.AddCommand(newKeysCreate(io, as), newKeysList(io, as), newKeysRevoke(io, as))
	return c
}

func newKeysCreate(io Streams, as *format) *cobra.Command {
	var name, tenant, kind string
	var permissions []string
	var expires time.Duration
	c := &cobra.Command{
		Use: "create", Short: "Make a key; it is written to standard output, this once", Args: cobra.NoArgs,
		Long: "Makes a key and writes it to standard output. It is shown this once: the service keeps its hash only.\n" +
			"Permissions that grant something are sandboxes:read, sandboxes:write and all:all, which is what its maker may do\n" +
			"at the moment of each request.",
		Example: "  automation keys create --name ci --permissions sandboxes:read,sandboxes:write\n" +
			"  automation keys create --name phone --kind access_token --permissions all:all --expires 720h -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, _ []string) error {
			if name == "" || len(permissions) == 0 {
				return usageError{errors.New("want --name and --permissions")}
			}
			body := map[string]any{"name": name, "kind": kind, "permissions": permissions}
			if tenant != "" {
				body["tenant"] = tenant
			}
			if expires < 0 || expires > 0 && expires < time.Second {
				return usageError{errors.New("--expires: want a second or more")}
			}
			if expires > 0 {
				body["expires_in_seconds"] = int64(expires / time.Second)
			}
			var raw json.RawMessage
			if err := s.json(ctx, http.MethodPost, "/keys", body, &raw); err != nil {
				return err
			}
			var made keyObject
			if err := json.Unmarshal(raw, &made); err != nil {
				return err
			}
			return s.show(raw, func() error {
				fmt.Fprintln(s.io.Out, made.Key)
				s.done("made key %s (%s)", made.ID, strings.Join(made.Permissions, ", "))
				if len(made.Ineffective) > 0 {
					s.done("warning: without effect: %s", strings.Join(made.Ineffective, ", "))
				}
				return nil
			})
		}),
	}
	c.Flags().StringVar(&name, "name", "", "what it is for")
	c.Flags().StringVar(&tenant, "tenant", "", "organization whose sandboxes it reaches (default: that of the login)")
	c.Flags().StringSliceVar(&permissions, "permissions", nil, "what it may do: sandboxes:read, sandboxes:write, all:all")
	c.Flags().StringVar(&kind, "kind", "api_key", "api_key (of a workspace) or access_token (of a customer)")
	c.Flags().DurationVar(&expires, "expires", 0, "how long it is valid, e.g. 720h (default: until it is revoked)")
	return c
}

func newKeysList(io Streams, as *format) *cobra.Command {
	var tenant string
	var limit int
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List keys, newest first; their secrets are not kept", Args: cobra.NoArgs,
		Example: "  automation keys ls\n  automation keys ls -o json",
		RunE: io.withClient(as, func(ctx context.Context, s *session, _ []string) error {
			if limit < 1 {
				return usageError{errors.New("--limit: want more than 0")}
			}
			query := url.Values{}
			if tenant != "" {
				query.Set("tenant", tenant)
			}
			keys, p, err := listed[keyObject](ctx, s.client, "/keys", query, "keys", limit)
			if err != nil {
				return err
			}
			return s.show(map[string]any{"keys": p.items, "total": p.total}, func() error {
				return s.table(s.keyTable(keys), "no keys")
			})
		}),
	}
	c.Flags().StringVar(&tenant, "tenant", "", "of this organization (default: that of the login)")
	c.Flags().IntVar(&limit, "limit", pageSize, "at most so many")
	return c
}

func newKeysRevoke(io Streams, as *format) *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID...", Short: "End the validity of keys at once", Args: cobra.MinimumNArgs(1),
		Example: "  automation keys revoke 019f0f5e-8d5a-7c11-9a53-0d6f1c2b3a4d",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			return s.each(args, "revoked", func(word string) (string, error) {
				id, err := s.key(ctx, word)
				if err != nil {
					return "", err
				}
				return id, s.json(ctx, http.MethodDelete, "/keys/"+id, nil, nil)
			})
		}),
	}
}

// key finds a key by its id, the beginning of it, or its name.
func (c *client) key(ctx context.Context, word string) (string, error) {
	if isID(word) {
		return strings.ToLower(word), nil
	}
	keys, _, err := listed[keyObject](ctx, c, "/keys", url.Values{}, "keys", mostSearched)
	if err != nil {
		return "", err
	}
	var all []candidate
	names := map[string]string{}
	for _, one := range keys {
		all = append(all, candidate{id: one.ID, automation: one.ID})
		names[one.ID] = one.Name
	}
	return pick(word, "key", all, names)
}

func (s *session) keyTable(keys []keyObject) *table {
	var ids []string
	for _, one := range keys {
		ids = append(ids, one.ID)
	}
	short := shorten(ids)
	t := newTable("KEY", "NAME", "KIND", "SECRET", "PERMISSIONS", "STATE", "MADE", "USED")
	t.text, t.rest = []string{"NAME", "PERMISSIONS"}, []string{"KIND", "MADE", "SECRET"}
	for _, one := range keys {
		t.row(head(one.ID, short), one.Name, one.Kind, one.Start+"…", strings.Join(one.Permissions, ","), keyState(one, s.now),
			ago(&one.CreatedAt, s.now), ago(one.LastUsedAt, s.now))
	}
	return t
}

func keyState(k keyObject, now time.Time) string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case k.ExpiresAt != nil && !k.ExpiresAt.After(now):
		return "expired"
	}
	return "valid"
}
