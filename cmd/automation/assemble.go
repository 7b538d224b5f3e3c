package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"automation/config"
	"automation/loop"
	"automation/models"
	"automation/sandbox"
	"automation/sandbox/backend"
	"automation/scheduler"
	"automation/watchdog"
)

// processBackend is the embedded default; openhandsBackend is the one whose provider checks callers too.
const (
	processBackend   = "process"
	openhandsBackend = "openhands"
	dockerBackend    = "docker"
)

// Bounds of the connections that are accepted.
const (
	headersWithin = 10 * time.Second
	idleWithin    = 2 * time.Minute
)

// chooseBackend applies the rule of which backend new runs use; live are the backends that have boxes.
func chooseBackend(cfg config.Config, environ map[string]string, live []string) (config.Choice, error) {
	var around config.Surroundings
	for _, name := range backend.Variables(processBackend) {
		if environ[name] != "" {
			around.ProviderVariables = append(around.ProviderVariables, name)
		}
	}
	if i := slices.IndexFunc(live, func(name string) bool { return name != processBackend }); i >= 0 {
		around.OtherBackend = live[i]
	}
	return cfg.ChooseBackend(around)
}

// assemble joins the parts: what settles boxes, what lets requests into them, the duties and the server.
func (a *App) assemble(context.Context) error {
	a.nudges = nudges{
		schedule: loop.NewNudge(), dispatch: loop.NewNudge(), janitor: loop.NewNudge(), aftercare: loop.NewNudge(),
		stale: map[models.Place]loop.Nudge{{}: loop.NewNudge()}, settle: map[models.Place]loop.Nudge{},
	}
	for _, p := range a.places() {
		a.nudges.stale[p], a.nudges.settle[p] = loop.NewNudge(), loop.NewNudge()
	}
	a.settler = sandbox.NewSettler(sandbox.SettlerConfig{
		Store: a.store, Backends: a.backends, Deployment: a.deployment, Settings: a.settings(), Blobs: a.blobs, Exports: a.exports,
		Log: a.component("settler"), Wake: a.nudges.wake, Deletes: a.metrics.BoxDeleted, Prepared: a.metrics.Prepared,
		Recorded: func(boxID uuid.UUID) { a.access.Changed(boxID) },
	})
	a.access = sandbox.NewAccess(sandbox.AccessConfig{Store: a.store, Log: a.component("access"), Wake: a.nudges.wake})
	a.onClose(func() error {
		a.access.Close()
		return nil
	})
	a.agents = a.customers()
	duties, err := loop.New(a.component("loop"), a.loops()...)
	if err != nil {
		return err
	}
	a.duties = duties
	a.metrics.WatchLoops(duties.Status)
	api := a.handler()
	if err := a.knowRoutes(api); err != nil {
		return err
	}
	a.server = &http.Server{Handler: a.forRoles(api), ReadHeaderTimeout: headersWithin, IdleTimeout: idleWithin, ErrorLog: a.serverLog()}
	return nil
}

// loops are the duties of this process.
func (a *App) loops() []loop.Loop {
	schedules := &scheduler.Schedules{
		Store: a.store, Decide: a.decide, Interval: a.config.Scheduler.Interval, Log: a.component("schedule"),
		Nudge: a.nudges.schedule, Dispatch: a.nudges.dispatch, Settle: a.nudges.wakeAll, Fired: a.metrics.SchedulesFired,
	}
	dispatch := &scheduler.Dispatch{
		Store: a.store, Blobs: a.blobs, Decide: a.decide, Deployment: a.deployment, APIURL: a.boxURL(),
		Settings: a.config.Dispatch, Contract: a.contract, Log: a.component("dispatch"),
		Nudge: a.nudges.dispatch, Settle: a.nudges.wakeAll, Started: a.metrics.RunStarted,
	}
	watch := &watchdog.Watchdog{
		Store: a.store, Config: a.config, Deployment: a.deployment, Backends: map[models.Place]sandbox.Backend{}, Watches: map[models.Place]watchdog.Watch{},
		Settler: a.settler, Blobs: a.blobs, Decide: a.decide, Log: a.component("watchdog"),
		StaleNudges: a.nudges.stale, JanitorNudge: a.nudges.janitor, SettleNudges: a.nudges.settle, Swept: a.swept,
		AftercareNudge: a.nudges.aftercare,
	}
	if local := a.config.Sandbox; a.choice.Local {
		dispatch.Local = scheduler.LocalMode{
			URL: local.AgentServerURL, Key: local.AgentServerAPIKey, InnerURL: local.InnerAgentServerURL,
			WorkspaceBase: local.WorkspaceBase, CallbackKey: a.localKey,
		}
		watch.Local = &watchdog.LocalAgent{URL: local.AgentServerURL, Key: local.AgentServerAPIKey}
	} else {
		own := a.backends[a.choice.Backend]
		dispatch.Backend, dispatch.Place = own, a.place(a.choice.Backend, own)
	}
	dispatch.Stale = a.nudges.stale[dispatch.Place]
	for name, b := range a.backends {
		watch.Backends[a.place(name, b)] = b
		watch.Watches[a.place(name, b)] = a.watches[name]
	}
	duties := []loop.Loop{a.clock()}
	if shows, asked := a.watched(); asked {
		duties = append(duties, shows)
	}
	if a.has(roleWatchdog) {
		duties = append(duties, watch.Loops()...)
	}
	if a.has(roleScheduler) {
		duties = append(duties, schedules.Loop())
	}
	if a.has(roleDispatcher) {
		duties = append(duties, dispatch.Loop())
	}
	if a.has(roleWatchdog) {
		duties = append(duties, a.agents.Loops()...)
	}
	return a.underTestClock(duties)
}

// clockEvery is how often the database's clock is read anew.
const clockEvery = time.Minute

// mostSkew is how far the host's clock may be from the database's before the service is not ready.
const mostSkew = 5 * time.Second

// clock is the duty that keeps Store.Now true.
func (a *App) clock() loop.Loop {
	return loop.Loop{Name: "clock", Every: clockEvery, Pass: func(ctx context.Context) (int, error) {
		skew, err := a.store.Sync(ctx)
		if err != nil {
			return 0, err
		}
		if a.skew.Store(int64(skew)); skew.Abs() > mostSkew {
			return 0, fmt.Errorf("the clock of this machine is %s away from the database's", skew)
		}
		return 0, nil
	}}
}

// alive counts the boxes that the providers themselves list under our label.
func (a *App) alive(ctx context.Context) (int, error) {
	n := 0
	for _, b := range a.backends {
		for _, err := range b.List(ctx, sandbox.Label{Deployment: a.deployment}) {
			if errors.Is(err, errors.ErrUnsupported) {
				break
			}
			if err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}
