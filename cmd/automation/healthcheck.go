package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"automation/config"
)

// probeWithin bounds a probe: a service that answers later is not well.
const probeWithin = 5 * time.Second

func newHealthcheck(io Streams) *cobra.Command {
	return &cobra.Command{
		Use: "healthcheck live|ready", Short: "Ask a service whether it lives, or is ready; for containers without a shell",
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: []string{"live", "ready"},
		Example: "  automation healthcheck ready\n  AUTOMATION_URL=http://10.0.0.7:8000 automation healthcheck live",
		RunE: func(c *cobra.Command, args []string) error {
			root, err := io.serviceURL(config.Environment(io.Env)["AUTOMATION_URL"])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), probeWithin)
			defer cancel()
			probe := newClient(root, "")
			defer probe.close()
			path := map[string]string{"live": "/health", "ready": "/ready"}[args[0]]
			got, err := probe.exchange(ctx, http.MethodGet, path, "", nil)
			if err != nil {
				return err
			}
			if got.code != http.StatusOK {
				return fmt.Errorf("%s: %s", got.status, strings.TrimSpace(string(got.body)))
			}
			_, err = fmt.Fprintln(io.Out, strings.TrimSpace(string(got.body)))
			return err
		},
	}
}
