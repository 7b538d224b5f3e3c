package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"

	"automation/models"
	"automation/router"
	"automation/sandbox"
	"automation/sandbox/backend"
	"automation/watchdog"
)

// openBackends opens the backend of new runs and every other one that is configured.
func (a *App) openBackends(ctx context.Context) error {
	location, err := backend.Location(a.config.Storage.DataDir)
	if err != nil {
		return err
	}
	a.location = location.String()
	live, err := a.store.LiveBackends(ctx)
	if err != nil {
		return err
	}
	if a.choice, err = chooseBackend(a.config, a.environ, live); err != nil {
		return err
	}
	if err := a.measure(ctx); err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	deps := backend.Deps{
		DataDir: a.config.Storage.DataDir, Executable: executable, Log: a.component("backend"), Now: a.store.Now, Config: a.config, Keys: a.store,
	}
	a.backends, a.locations = map[string]*sandbox.Decorated{}, map[string]string{}
	a.watches, a.stopsRuntimes = map[string]watchdog.Watch{}, map[string]bool{}
	for _, name := range a.served() {
		if err := a.openBackend(ctx, name, deps); err != nil {
			return err
		}
	}
	return nil
}

// openBackend opens one backend and what it has beside the contract of all.
func (a *App) openBackend(ctx context.Context, name string, deps backend.Deps) error {
	b, err := backend.New(name, deps, a.environ)
	if err != nil {
		return err
	}
	if closer, ok := b.(io.Closer); ok {
		a.onClose(closer.Close)
	}
	limits := sandbox.Limits{PerSecond: b.Capabilities().CallsPerSecond, Observe: a.metrics.ProviderCall(name)}
	if b.Capabilities().Placed { // calls to this machine cost nobody anything
		limits.PerSecond, limits.Burst, limits.Parallel = localPerSecond, localPerSecond, watchdog.PlacedWorkers
	}
	a.backends[name] = sandbox.Decorate(b, limits)
	if a.locations[name], err = backend.LocationOf(b, deps.DataDir); err != nil {
		return err
	}
	a.stopsRuntimes[name] = backend.StopsWithService(b)
	if watch := backend.Watch(b, a.deployment); watch != nil {
		a.watches[name] = watch
	}
	if name == a.choice.Backend {
		a.contract, a.workspace = backend.Contract(b), backend.Workspace(b)
	}
	if err := backend.Start(ctx, b, a.deployment); err != nil {
		a.component("backend").WarnContext(ctx, "boxes of conversations not removed at the start", "provider", name, "error", err)
	}
	return nil
}

// localPerSecond bounds the calls to a backend of this machine.
const localPerSecond = 500

// served lists the backends of this process: that of new runs, those that are configured beside it, and process, whose boxes
// of an earlier configuration are in the data folder.
func (a *App) served() []string {
	if a.choice.Local {
		return nil
	}
	names := []string{a.choice.Backend, processBackend}
	if a.config.Auth.ServiceKey != "" {
		names = append(names, openhandsBackend)
	}
	if a.environ["AUTOMATION_DOCKER_IMAGE"] != "" {
		names = append(names, dockerBackend)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// places lists where this process works on boxes.
func (a *App) places() []models.Place {
	var places []models.Place
	for name, b := range a.backends {
		places = append(places, a.place(name, b))
	}
	return places
}

// place is where this process works on the boxes of one backend.
func (a *App) place(name string, b sandbox.Backend) models.Place {
	p := models.Place{Backend: name}
	if b.Capabilities().Placed {
		p.Location = a.location
		if own := a.locations[name]; own != "" {
			p.Location = own
		}
	}
	return p
}

// runtimes says where conversations get a box of their own: where runs do.
func (a *App) runtimes() router.Runtimes {
	own := a.backends[a.choice.Backend]
	if own == nil { // local mode
		return router.Runtimes{}
	}
	return router.Runtimes{Place: a.place(a.choice.Backend, own), Workspace: a.workspace}
}

// capabilities are what a backend can do as it is configured, or by itself where it is not.
func (a *App) capabilities(name string) sandbox.Capabilities {
	if b := a.backends[name]; b != nil {
		return b.Capabilities()
	}
	return capabilities(name)
}

// capabilities are what a backend can do, configured or not.
func capabilities(name string) sandbox.Capabilities {
	can, _ := backend.Capabilities(name)
	return can
}

// boxURL is the address of the API as boxes see it. A container reaches its host by a name of its own.
func (a *App) boxURL() string {
	if a.choice.Backend != dockerBackend || a.config.IsSet("AUTOMATION_BASE_URL") {
		return a.apiURL()
	}
	_, port, _ := net.SplitHostPort(a.listener.Addr().String())
	if a.config.Loopback() {
		a.component("backend").Warn("boxes cannot call back: the service listens on loopback only", "listen", a.config.HTTP.Listen,
			"fix", "set AUTOMATION_LISTEN, or AUTOMATION_LOCAL_API_KEY, whose default is to listen everywhere")
	}
	return "http://" + net.JoinHostPort("host.docker.internal", port) + a.config.HTTP.BasePath
}
