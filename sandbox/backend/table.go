// Package backend holds the adapters of the providers, one file (or folder) each, and the table they enter themselves in.
// Only this package knows a provider's settings and quirks (S0-142, S0-148); everybody else reads sandbox.Capabilities.
package backend

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"automation/config"
	"automation/sandbox"
)

// ErrSettings means that the environment names a backend that cannot be opened, or variables of one that cannot be used.
var ErrSettings = errors.New("settings of backend")

// Deps is what the service gives every backend.
type Deps struct {
	DataDir    string           // AUTOMATION_DATA_DIR, absolute
	Executable string           // this program, re-run for what happens inside a process box
	Log        *slog.Logger     // nil: discarded
	Now        func() time.Time // the clock of rows (Store.Now); nil: the host's
	Config     config.Config    // for what a provider shares with the service: its address, credentials, rates
	Keys       KeyStore         // where keys minted per user are kept; nil: in memory
}

// entry is one provider of the table.
type entry struct {
	capabilities sandbox.Capabilities
	variables    []string
	check        func(map[string]string) error                          // nil as open
	open         func(Deps, map[string]string) (sandbox.Backend, error) // nil: this build has no adapter
}

var table = map[string]entry{}

// register enters a provider. C is its own env struct, so that a new provider needs no change of package config. It panics
// on what only a programmer can get wrong, before main starts.
func register[C any](name string, static sandbox.Capabilities, open func(Deps, C) (sandbox.Backend, error)) {
	params, err := env.GetFieldParams(new(C))
	if err != nil {
		panic(fmt.Sprintf("settings of backend %s: %v", name, err))
	}
	e := entry{capabilities: static}
	var filled []string // variables with a default: set but empty is a mistake, not the default
	for _, p := range params {
		e.variables = append(e.variables, p.Key)
		if p.HasDefaultValue {
			filled = append(filled, p.Key)
		}
	}
	parse := func(environ map[string]string) (c C, err error) {
		for _, key := range filled {
			if value, set := environ[key]; set && strings.TrimSpace(value) == "" {
				return c, fmt.Errorf("%w %s: %s is set but empty", ErrSettings, name, key)
			}
		}
		if environ == nil { // the library reads the process's own environment then
			environ = map[string]string{}
		}
		if c, err = env.ParseAsWithOptions[C](env.Options{Environment: environ}); err != nil {
			return c, fmt.Errorf("%w %s: %w", ErrSettings, name, byVariable[C](err))
		}
		if checked, can := any(c).(interface{ Check() error }); can { // a provider's settings may bound each other
			if err := checked.Check(); err != nil {
				return c, fmt.Errorf("%w %s: %w", ErrSettings, name, err)
			}
		}
		return c, nil
	}
	e.check = func(environ map[string]string) error {
		_, err := parse(environ)
		return err
	}
	e.open = func(d Deps, environ map[string]string) (sandbox.Backend, error) {
		c, err := parse(environ)
		if err != nil {
			return nil, err
		}
		return open(d, c)
	}
	enter(name, e)
}

// byVariable names the variable where the library names the field of the struct.
func byVariable[C any](err error) error {
	var all env.AggregateError
	if !errors.As(err, &all) {
		return err
	}
	var named []error
	for _, e := range all.Errors {
		if parse, ok := errors.AsType[env.ParseError](e); ok {
			if field, ok := reflect.TypeFor[C]().FieldByName(parse.Name); ok {
				key, _, _ := strings.Cut(field.Tag.Get("env"), ",")
				e = fmt.Errorf("%s: not a valid %s", key, parse.Type) // the value may be a secret
			}
		}
		named = append(named, e)
	}
	return errors.Join(named...)
}

// announce enters a provider whose capabilities are known but for which this build has no adapter: boxes of another build
// are still shown and decided on by what their provider can do (design: an unconfigured backend's capabilities).
func announce(name string, static sandbox.Capabilities) { enter(name, entry{capabilities: static}) }

func enter(name string, e entry) {
	if _, taken := table[name]; taken {
		panic("backend " + name + " is registered twice")
	}
	table[name] = e
}

// Names returns every known backend, sorted, with or without an adapter in this build.
func Names() []string { return slices.Sorted(maps.Keys(table)) }

// Available returns the backends that New can open, sorted.
func Available() []string {
	return slices.DeleteFunc(Names(), func(name string) bool { return table[name].open == nil })
}

// Capabilities returns what a provider can do, configured or not (S0-134…139); false for an unknown name.
func Capabilities(name string) (sandbox.Capabilities, bool) {
	e, known := table[name]
	return e.capabilities, known
}

// Variables lists the environment variables of every backend but the named ones.
func Variables(but ...string) []string {
	var names []string
	for name, e := range table {
		if !slices.Contains(but, name) {
			names = append(names, e.variables...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Check reads a backend's variables without opening it, which may make folders. Its errors are those of New for a name that
// cannot be opened and for variables that cannot be read or used.
func Check(name string, environ map[string]string) error {
	e, known := table[name]
	switch {
	case !known:
		return fmt.Errorf("%w: unknown sandbox backend %q: one of %s", ErrSettings, name, strings.Join(Available(), ", "))
	case e.open == nil:
		return fmt.Errorf("%w: sandbox backend %q is not in this build: one of %s", ErrSettings, name, strings.Join(Available(), ", "))
	}
	return e.check(environ)
}

// New opens a backend from environ, the service's environment as a map. Every error is one of configuration.
func New(name string, deps Deps, environ map[string]string) (sandbox.Backend, error) {
	if err := Check(name, environ); err != nil {
		return nil, err
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	return table[name].open(deps, environ)
}
