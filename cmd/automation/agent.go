package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"automation/config"
)

// localTenant is the organization of the local user (contract section 1.1).
var localTenant = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("openhands-local-org")).String()

// agentObject is what commands show of the server in a box.
type agentObject struct {
	Enabled   bool       `json:"enabled"`
	Status    string     `json:"status"`
	SessionID *string    `json:"session_id"`
	ExitCode  *int       `json:"exit_code"`
	Reason    string     `json:"reason"`
	UpdatedAt *time.Time `json:"updated_at"`
}

func newAgent(io Streams) *cobra.Command {
	var tenant string
	c := &cobra.Command{
		Use: "agent", Short: "Start, watch and stop the OpenHands server in a box, as a customer does", Args: cobra.NoArgs,
		Long: "Works with the public routes of customers, with the login of the other commands or with a key of automation keys in\n" +
			"AUTOMATION_TOKEN. With a key, a box is named by its whole id.",
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().StringVar(&tenant, "tenant", "", "organization of the box (default: AUTOMATION_TENANT, else that of the local login)")
	as := outputFlag(c)
	with := func(do func(ctx context.Context, s *session, path string) error) func(*cobra.Command, []string) error {
		return io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			path, err := s.agentPath(ctx, args[0], tenant)
			if err != nil {
				return err
			}
			return do(ctx, s, path)
		})
	}
	c.AddCommand(newAgentCall("status", "Show the server in a box; nothing is woken", http.MethodGet, with),
		newAgentCall("start", "Start it; the one that runs is shown where there is one", http.MethodPost, with),
		newAgentCall("stop", "Stop it; what it printed can still be read", http.MethodDelete, with),
		newAgentOutput(as, with), newAgentRelay(io, &tenant, as),
		newAgentSwitch(io, as, &tenant, "enable", "Allow servers of customers in a box, or in every box of the tenant", true),
		newAgentSwitch(io, as, &tenant, "disable", "Start no more of them; what runs can still be watched and stopped", false))
	return c
}

type withAgent = func(do func(ctx context.Context, s *session, path string) error) func(*cobra.Command, []string) error

// newAgentCall makes a command of one call.
func newAgentCall(verb, short, method string, with withAgent) *cobra.Command {
	return &cobra.Command{
		Use: verb + " BOX", Short: short, Args: cobra.ExactArgs(1),
		Example: "  automation agent " + verb + " 019f0f5e-8d5a\n  automation agent " + verb + " 019f0f5e-8d5a -o json",
		RunE: with(func(ctx context.Context, s *session, path string) error {
			var raw json.RawMessage
			if err := s.atRoot().json(ctx, method, path, nil, &raw); err != nil {
				return err
			}
			return s.showAgent(raw)
		}),
	}
}

// newAgentSwitch makes enable and disable.
func newAgentSwitch(io Streams, as *format, tenant *string, verb, short string, on bool) *cobra.Command {
	return &cobra.Command{
		Use: verb + " [BOX]", Short: short, Args: cobra.MaximumNArgs(1),
		Example: "  automation agent " + verb + " 019f0f5e-8d5a\n  automation agent " + verb,
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			path := "/tenants/" + s.io.tenant(*tenant)
			if len(args) > 0 {
				id, err := s.box(ctx, args[0])
				if err != nil {
					return err
				}
				path = "/sandboxes/" + id
			}
			var raw json.RawMessage
			if err := s.json(ctx, http.MethodPut, path+"/agent-feature", map[string]any{"enabled": on}, &raw); err != nil {
				return err
			}
			return s.show(raw, func() error {
				s.done("%sd", verb)
				return nil
			})
		}),
	}
}

// agentPath is that of the server in a box.
func (s *session) agentPath(ctx context.Context, word, tenant string) (string, error) {
	id, err := s.box(ctx, word)
	if err != nil {
		return "", err
	}
	return agentPathOf(id, s.io.tenant(tenant)), nil
}

func agentPathOf(box, tenant string) string {
	return "/v1/customer/tenants/" + tenant + "/sandboxes/" + box + "/agent"
}

// tenant is the one that a flag or the environment names, or that of the local login.
func (io Streams) tenant(flag string) string {
	if flag != "" {
		return flag
	}
	if named := config.Environment(io.Env)["AUTOMATION_TENANT"]; named != "" {
		return named
	}
	return localTenant
}

// atRoot is the client for the routes beside the API, at the root of the service.
func (c *client) atRoot() *client {
	beside := *c
	beside.root, beside.below = strings.TrimSuffix(c.root, apiPath), ""
	return &beside
}

func (s *session) showAgent(raw json.RawMessage) error {
	return s.show(raw, func() error {
		var a agentObject
		if err := json.Unmarshal(raw, &a); err != nil {
			return err
		}
		fmt.Fprintln(s.io.Out, a.line(s.now))
		if !a.Enabled {
			s.done("agents are not enabled for this box")
		}
		return nil
	})
}

// line says how a server is: its status, why, and which session it is.
func (a agentObject) line(now time.Time) string {
	words := []string{a.Status}
	if a.Reason != "" {
		words = append(words, "("+a.Reason+")")
	}
	if a.SessionID != nil {
		words = append(words, *a.SessionID)
	}
	if a.ExitCode != nil {
		words = append(words, fmt.Sprintf("exit code %d", *a.ExitCode))
	}
	if a.UpdatedAt != nil {
		words = append(words, ago(a.UpdatedAt, now))
	}
	return strings.Join(words, " ")
}

func newAgentOutput(as *format, with withAgent) *cobra.Command {
	var follow bool
	var name string
	var after int64
	c := &cobra.Command{
		Use: "output BOX", Short: "Write what the server in a box prints; with -f until it ends, across every disconnect", Args: cobra.ExactArgs(1),
		Long: "Writes what the server prints to standard output, byte for byte; what was not kept and the exit code are told on standard\n" +
			"error. With -o json the lines are written as they come.",
		Example: "  automation agent output 019f0f5e-8d5a\n  automation agent output -f 019f0f5e-8d5a",
		RunE: with(func(ctx context.Context, s *session, path string) error {
			if after < 0 {
				return usageError{errors.New("--after: want 0 or more")}
			}
			f := &following{session: s, api: s.atRoot(), path: path, id: name, after: after, raw: *as == asJSON}
			return f.run(ctx, follow)
		}),
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "until it ends")
	c.Flags().StringVar(&name, "session", "", "session to read (default: the present one)")
	c.Flags().Int64Var(&after, "after", 0, "only lines after this position")
	return c
}
