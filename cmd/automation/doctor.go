package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"automation/config"
	"automation/models"
	"automation/sandbox/backend"
)

// verdict is how a check went.
type verdict string

// The verdicts.
const (
	verdictOK   verdict = "ok"
	verdictWarn verdict = "warn"
	verdictFail verdict = "fail"
)

// finding is one thing that doctor looked at.
type finding struct {
	Name  string  `json:"name"`
	State verdict `json:"state"`
	Found string  `json:"found"`
	Mend  string  `json:"mend,omitempty"` // how to, where something is wrong
}

// checkWithin bounds each check.
const checkWithin = 10 * time.Second

// doctor looks at a configuration and at what it points to, and changes nothing.
type doctor struct {
	config   config.Config
	environ  map[string]string
	unknown  []string
	store    *models.Store // nil: there is no database that could be looked into
	findings []finding
}

func newDoctor(io Streams) *cobra.Command {
	c := &cobra.Command{
		Use: "doctor", Short: "Check the configuration and what it points to; changes nothing, also while serve runs", Args: cobra.NoArgs,
		Long: "Checks what serve would meet with this environment: variables, data folder, disk, database, schema, clock, secrets,\n" +
			"backend, retention and addresses. Each check says what was found and, where something is wrong, how to mend it.\n" +
			"Exit code 1 when a check fails; a warning is no failure.",
		Example: "  automation doctor\n  automation doctor -o json",
	}
	as := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx, stop := untilSignal(c.Context())
		defer stop()
		d, err := io.examine(ctx)
		if err != nil {
			return err
		}
		return io.report(d.findings, *as)
	}
	return c
}

// examine makes every check. A configuration that cannot be read ends it, with the names that may have been meant: nothing else
// could be trusted.
func (io Streams) examine(ctx context.Context) (d *doctor, err error) {
	cfg, problem := config.Load(io.Env)
	d = &doctor{config: cfg, environ: config.Environment(io.Env), unknown: config.Unknown(io.Env, backend.Variables()...)}
	if problem != nil {
		d.problems(problem)
		d.variables(ctx)
		return d, nil
	}
	d.ok("configuration", "every variable can be read")
	defer func() {
		if d.store != nil {
			err = errors.Join(err, d.store.Close())
		}
	}()
	for _, check := range []func(context.Context){
		d.variables, d.limits, d.dataFolder, d.disk, d.bucket, d.owner, d.schema, d.clock, d.secrets, d.backends, d.baseURL,
	} {
		bounded, cancel := context.WithTimeout(ctx, checkWithin)
		check(bounded)
		cancel()
	}
	return d, ctx.Err()
}

func (d *doctor) ok(name, found string, args ...any) {
	d.findings = append(d.findings, finding{Name: name, State: verdictOK, Found: fmt.Sprintf(found, args...)})
}

func (d *doctor) warn(name, found, mend string) {
	d.findings = append(d.findings, finding{Name: name, State: verdictWarn, Found: found, Mend: mend})
}

func (d *doctor) fail(name, found, mend string) {
	d.findings = append(d.findings, finding{Name: name, State: verdictFail, Found: found, Mend: mend})
}

// problems are those of the configuration, each a finding of its own.
func (d *doctor) problems(err error) {
	var all *config.Error
	if !errors.As(err, &all) {
		d.fail("configuration", err.Error(), "see docs/OPERATIONS.md")
		return
	}
	for _, p := range all.Problems {
		found := p.Name + " is not set"
		if p.Set {
			found = fmt.Sprintf("%s=%q", p.Name, p.Value)
		}
		d.fail("configuration", found, p.Want)
	}
}

// variables are those that nothing knows.
func (d *doctor) variables(context.Context) {
	for _, warning := range d.unknown {
		d.warn("variables", warning, "correct or remove it")
	}
	if len(d.unknown) == 0 {
		d.ok("variables", "no unknown AUTOMATION_ name")
	}
}

// report writes the findings; the exit code is 1 when one is a failure.
func (io Streams) report(findings []finding, as format) error {
	failed := 0
	for _, f := range findings {
		if f.State == verdictFail {
			failed++
		}
	}
	if as == asJSON {
		if err := writeJSON(io.Out, map[string]any{"ok": failed == 0, "checks": findings}); err != nil {
			return err
		}
	} else {
		var text strings.Builder
		for _, f := range findings {
			fmt.Fprintf(&text, "%-4s  %-13s  %s\n", f.State, f.Name, f.Found)
			if f.Mend != "" {
				fmt.Fprintf(&text, "%s→ %s\n", strings.Repeat(" ", 21), f.Mend)
			}
		}
		if _, err := fmt.Fprint(io.Out, text.String()); err != nil {
			return err
		}
	}
	if failed > 0 {
		return exitError(exitFailed)
	}
	return nil
}
