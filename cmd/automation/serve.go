package main

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"automation/config"
	"automation/sandbox/backend"
)

func newServe(io Streams) *cobra.Command {
	var words []string
	c := &cobra.Command{
		Use:     "serve",
		Short:   "Run the service; all configuration comes from the environment (docs/OPERATIONS.md)",
		Example: "  automation serve\n  automation serve --roles scheduler,dispatcher,watchdog",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			roles, err := parseRoles(words)
			if err != nil {
				return err
			}
			ctx, stop := untilSignal(c.Context())
			defer stop()
			return io.serve(ctx, roles)
		},
	}
	c.Flags().StringSliceVar(&words, "roles", nil, "what this process does: api, scheduler, dispatcher, watchdog (default all)")
	return c
}

// checkBackends reads the variables of the backends that would be served, so that what is wrong with them is told together with
// the rest and before anything is opened. A name that no backend has is a problem of the configuration itself.
func checkBackends(environ []string) error {
	vars := config.Environment(environ)
	if vars["AUTOMATION_AGENT_SERVER_URL"] != "" {
		return nil // local mode has none
	}
	err := backend.Check(processBackend, vars)
	if chosen := vars["AUTOMATION_SANDBOX_BACKEND"]; chosen != processBackend && slices.Contains(backend.Names(), chosen) {
		err = errors.Join(err, backend.Check(chosen, vars))
	}
	return err
}

// serve runs the service until ctx ends.
func (io Streams) serve(ctx context.Context, roles []role) error {
	cfg, err := config.Load(io.Env)
	if err = errors.Join(err, checkBackends(io.Env)); err != nil {
		return err
	}
	log := newLog(cfg.Log, io.Err)
	hideSecrets(log, cfg, io.Env)
	for _, warning := range config.Unknown(io.Env, backend.Variables()...) {
		log.Warn("unknown variable", "detail", warning)
	}
	if err := checkRoles(roles, cfg); err != nil {
		return err
	}
	app, err := newApp(ctx, cfg, io.Env, log, roles...)
	if err != nil {
		return err
	}
	log.Info("serving", "address", app.listener.Addr().String(), "base_url", app.config.HTTP.BaseURL,
		"database", string(app.store.Dialect()), "backend", app.backendName(), "roles", roles, "version", version, "settings", cfg)
	failed := app.Serve(ctx)
	if err := app.Close(); failed == nil {
		failed = err
	}
	if failed == nil {
		log.Info("stopped")
	}
	return failed
}

// backendName is the backend of new runs, for people.
func (a *App) backendName() string {
	if a.choice.Local {
		return "local mode: " + a.config.Sandbox.AgentServerURL
	}
	return a.choice.Backend
}
