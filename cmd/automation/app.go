package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"automation/config"
	"automation/loop"
	"automation/metrics"
	"automation/migrations"
	"automation/models"
	"automation/router"
	"automation/sandbox"
	"automation/sandbox/backend"
	"automation/scheduler"
	agents "automation/session"
	"automation/watchdog"
)

// App is one running service: it builds everything in the order of its needs and stops it in the reverse.
type App struct {
	config         config.Config
	roles          []role
	environ        map[string]string
	log            *slog.Logger
	closers        []func() error // in the order of opening
	listener       net.Listener
	store          *models.Store
	deployment     uuid.UUID
	localKey       config.Secret
	choice         config.Choice
	backends       map[string]*sandbox.Decorated
	contract       func(context.Context, sandbox.Owner) (map[string]string, error) // of the backend of new runs; nil: none
	location       string                                                          // of the data folder, where the boxes of placed backends are
	locations      map[string]string                                               // of the placed backends that have one of their own
	watches        map[string]watchdog.Watch                                       // of the backends that tell what happens to their boxes
	workspace      func(string) (string, error)                                    // checks a caller's own checkout; nil: boxes of new runs take none
	stopsRuntimes  map[string]bool                                                 // whose boxes of conversations are suspended when the service stops
	blobs          blobStore
	exports        *sandbox.Exporter
	settler        *sandbox.Settler
	access         *sandbox.Access
	agents         *agents.Sessions // that customers start in boxes
	nudges         nudges
	duties         *loop.Runner
	server         *http.Server
	metrics        *metrics.Metrics
	scrapes        *http.Server // of metrics without a login; nil: none
	scrapeListener net.Listener
	skew           atomic.Int64 // of the host's clock against the database's, as a time.Duration
	leaving        *departure
	testClock      testClock // of builds with the tag testhooks
}

// nudges wake the duties.
type nudges struct {
	schedule, dispatch, janitor, aftercare loop.Nudge
	stale, settle                          map[models.Place]loop.Nudge
}

// wake wakes the settler's workers of a place.
func (n nudges) wake(p models.Place) { n.settle[p].Wake() }

// wakeAll wakes the settler everywhere, and what stands in for it in local mode.
func (n nudges) wakeAll() {
	n.aftercare.Wake()
	for _, nudge := range n.settle {
		nudge.Wake()
	}
}

// newApp builds the service up to the open port. Problems of the configuration are a *config.Error. Close the App in any case.
func newApp(ctx context.Context, cfg config.Config, environ []string, log *slog.Logger, roles ...role) (*App, error) {
	if len(roles) == 0 {
		roles = allRoles
	}
	a := &App{config: cfg, roles: roles, leaving: newDeparture(), environ: config.Environment(environ), log: log}
	for _, step := range []func(context.Context) error{
		a.makeDataDir, a.listen, a.openDatabase, a.login, a.openBackends, a.openBlobs, a.assemble, a.listenMetrics,
	} {
		if err := step(ctx); err != nil {
			return a, errors.Join(err, a.Close())
		}
	}
	return a, nil
}

// Close releases what newApp opened, newest first.
func (a *App) Close() error {
	var errs []error
	for _, closing := range slices.Backward(a.closers) {
		errs = append(errs, closing())
	}
	a.closers = nil
	flushLog(a.log)
	return errors.Join(errs...)
}

func (a *App) onClose(f func() error) { a.closers = append(a.closers, f) }

func (a *App) makeDataDir(context.Context) error {
	if err := os.MkdirAll(a.config.Storage.DataDir, 0o700); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	return nil
}

// listen opens the port first, so that a taken one is found before the database is touched. Without a public URL the address
// is what boxes of this machine reach.
func (a *App) listen(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", a.config.HTTP.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	a.listener = l
	a.onClose(func() error {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	if !a.config.IsSet("AUTOMATION_BASE_URL") {
		_, port, _ := net.SplitHostPort(l.Addr().String())
		a.config.HTTP.BaseURL = "http://" + net.JoinHostPort("127.0.0.1", port)
	}
	return nil
}

func (a *App) openDatabase(ctx context.Context) error {
	err := a.database(ctx)
	if errors.Is(models.Fault(err), models.ErrUnavailable) {
		return fmt.Errorf("reach the database: %w", err)
	}
	return err
}

func (a *App) database(ctx context.Context) error {
	db := a.config.Database
	if err := prepareDatabase(ctx, db); err != nil {
		return err
	}
	if path := db.SQLitePath(); path != "" {
		release, err := own(ctx, path)
		if err != nil {
			return err
		}
		a.onClose(release)
	}
	if err := a.migrate(ctx); err != nil {
		return err
	}
	keys, err := a.sealingKeys()
	if err != nil {
		return err
	}
	if a.testClock, err = openTestClock(); err != nil {
		return err
	}
	options := append(a.testClock.options(), models.WithKeys(keys...), models.WithPool(db.MaxConnections()),
		models.WithDisableRules(a.disableRules()), models.WithRunEnds(a.runEnded))
	if a.store, err = models.Open(ctx, db.DSN.Reveal(), options...); err != nil {
		return err
	}
	a.onClose(a.store.Close)
	if a.store.Dialect() == models.SQLite { // one process owns the file: whoever held a lease is gone
		if err := a.store.ReleaseAll(ctx); err != nil {
			return err
		}
	}
	if a.deployment = a.config.Sandbox.DeploymentID; a.deployment == uuid.Nil {
		a.deployment, err = a.store.Deployment(ctx)
	}
	return err
}

func (a *App) migrate(ctx context.Context) error {
	dsn := a.config.Database.DSN.Reveal()
	if a.config.Database.Migrates() {
		return migrations.Up(ctx, dsn)
	}
	state, err := migrations.Status(ctx, dsn)
	if err != nil {
		return err
	}
	return state.Err()
}

// decide is what becomes of the box of a run that ends.
func (a *App) decide(e models.Ending) models.Decision {
	var can sandbox.Capabilities
	if e.Box != nil {
		can = a.capabilities(e.Box.Backend)
	}
	return sandbox.Disposition(e, a.settings(), can)
}

// disableRules are after how many failures an automation is switched off.
func (a *App) disableRules() models.DisableRules {
	r := a.config.Scheduler
	return models.DisableRules{Permanent: r.FailureThreshold, Consecutive: r.ConsecutiveFailureThreshold, Window: r.ConsecutiveFailureWindow}
}

func (a *App) settings() sandbox.Settings {
	return sandbox.Settings{
		CleanupDelay: a.config.Cleanup.Delay,
		ExitGrace:    a.config.Watchdog.ExitGrace,
		Reclaim:      sandbox.ReclaimTier(a.config.Sandbox.Reclaim),
		Export:       sandbox.ExportMode(a.config.Sandbox.Export),
		IdleTTL:      a.config.Dispatch.IdleTTL,
	}
}

// apiURL is the address of the API as boxes see it.
func (a *App) apiURL() string { return a.config.HTTP.BaseURL + "/api/automation" }

// cloud is the login by OpenHands Cloud where runs get their boxes there; nil elsewhere.
func (a *App) cloud() *router.Cloud {
	if a.choice.Backend != openhandsBackend {
		return nil
	}
	check := router.NewCloud(a.config, a.component("router"))
	a.onClose(func() error {
		check.Close()
		return nil
	})
	return check
}

// handler builds the HTTP API.
func (a *App) handler() http.Handler {
	check := a.cloud()
	return router.New(router.Deps{
		Store: a.store, Config: a.config, Blob: a.blobs, Access: a.access, Exports: a.exports,
		Nudge: router.Nudges{
			Dispatch: a.nudges.dispatch.Wake, Schedule: a.nudges.schedule.Wake,
			Janitor: a.nudges.janitor.Wake, Settle: a.nudges.wakeAll,
		},
		Runtimes: a.runtimes(), Customers: a.ofCustomers(check),
		LocalKey: a.localKey, Cloud: asVerifier(check), Settings: a.settings(), Capabilities: a.capabilities,
		Backends:         router.Backends{Known: backend.Names(), Configured: slices.Sorted(maps.Keys(a.backends)), NewRuns: a.choice.Backend},
		ValidateSchedule: scheduleProblem, NextFire: scheduler.NextFire,
		Ready: a.checks, Metrics: a.metrics.Handler(), Observe: a.metrics.Request, Reclaimed: a.metrics.ReclaimedByHand, Version: version, SDKVersion: sdkVersion, Log: a.component("router"),
	})
}

// scheduleProblem is scheduler.Validate as the router asks for it.
func scheduleProblem(schedule, timezone string) (field, text, reason string) {
	var wrong *scheduler.ScheduleError
	if err := scheduler.Validate(schedule, timezone); errors.As(err, &wrong) {
		return wrong.Field, wrong.Message, wrong.Reason
	}
	return "", "", ""
}

// Serve answers requests and runs the duties until ctx ends, then stops: it is not ready any more, nothing new is accepted or
// claimed, open requests and running steps get their time.
func (a *App) Serve(ctx context.Context) error {
	duties, stopDuties := context.WithCancel(context.WithoutCancel(ctx))
	defer stopDuties()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.duties.Run(duties)
	}()
	stopMetrics := a.serveMetrics()
	served := make(chan error, 1)
	go func() { served <- a.server.Serve(a.listener) }()
	a.tell(notifyReady)
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-served:
	}
	a.log.Info("stopping")
	a.tell(notifyStopping)
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopRequests)
	defer cancel()
	a.leaving.begin(stopping)
	a.agents.Close() // its readers are long, and come back elsewhere
	shut := a.server.Shutdown(stopping)
	if errors.Is(shut, context.DeadlineExceeded) {
		shut = a.server.Close()
	}
	a.access.Close() // ends WebSockets, which nothing else does: a box that somebody is in is not suspended
	a.suspendRuntimes(context.WithoutCancel(ctx))
	stopDuties()
	<-done
	return errors.Join(failed, shut, stopMetrics())
}

// stopRequests is how long open requests may take when the service stops.
const stopRequests = 10 * time.Second
