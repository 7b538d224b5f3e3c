package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"automation/metrics"
	"automation/models"
	"automation/sandbox/backend"
	"automation/testhooks"
	"automation/watchdog"
)

// measure makes the metrics, before the parts that report to them.
func (a *App) measure(context.Context) error {
	prices := map[string]metrics.Price{}
	for name, price := range a.config.Sandbox.Prices {
		prices[name] = metrics.Price(price)
	}
	a.metrics = metrics.New(metrics.Config{
		Version: version, Commit: commit(), Backends: backend.Names(), Serves: a.served(), Slots: a.config.Sandbox.Slots, Prices: prices,
		Now: a.store.Now, Log: a.component("metrics"),
	})
	a.metrics.WatchPools(a.store.Pools())
	a.metrics.WatchState(a.store.Census)
	return nil
}

// runEnded counts a run that ended. The store is opened before the metrics are made; nothing ends in between.
func (a *App) runEnded(e models.RunEnd) {
	testhooks.Reached(testhooks.FinishCommitted)
	if a.metrics != nil {
		a.metrics.RunEnded(e)
	}
}

func (a *App) swept(s watchdog.Sweep) { a.metrics.Swept(s.Kind, s.Took, s.Removed, s.Failed) }

// knowRoutes tells the metrics the templates of the routes.
func (a *App) knowRoutes(h http.Handler) error {
	return chi.Walk(h.(chi.Routes), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error { //nolint:forcetypeassert // the router's own
		a.metrics.Route(method, route)
		return nil
	})
}

// listenMetrics opens the port of scrapes. A port in use is no reason not to serve.
func (a *App) listenMetrics(ctx context.Context) error {
	address := a.config.HTTP.MetricsListen
	if address == "" {
		return nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		a.log.Warn("metrics not served", "address", address, "error", err)
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.metrics.Handler())
	a.scrapes = &http.Server{Handler: mux, ReadHeaderTimeout: headersWithin, ReadTimeout: headersWithin, WriteTimeout: time.Minute, IdleTimeout: idleWithin, ErrorLog: a.serverLog()}
	a.scrapeListener = l
	a.onClose(func() error {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return nil
}

// serveMetrics answers scrapes until stop is called, which waits.
func (a *App) serveMetrics() (stop func() error) {
	if a.scrapes == nil {
		return func() error { return nil }
	}
	served := make(chan error, 1)
	go func() { served <- a.scrapes.Serve(a.scrapeListener) }()
	return func() error {
		err := a.scrapes.Close()
		if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
			err = errors.Join(err, failed)
		}
		return err
	}
}
