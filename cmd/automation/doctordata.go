package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"automation/config"
	"automation/migrations"
	"automation/models"
	"automation/sandbox"
	"automation/sandbox/backend"
)

// schema is whether the database answers and fits this program. It opens the store for the checks after it.
func (d *doctor) schema(ctx context.Context) {
	db := d.config.Database
	state, err := migrations.Status(ctx, db.DSN.Reveal())
	if err != nil {
		d.fail("database", err.Error(), "check AUTOMATION_DB_URL, or AUTOMATION_DB_HOST and its like, and that the database runs")
		return
	}
	if path := db.SQLitePath(); path != "" && nearest(path) != path {
		d.ok("database", "%s is not there yet; serve makes it", path)
		return
	}
	d.ok("database", "%s answers", d.databaseName())
	unfit := state.Err()
	behind := errors.Is(unfit, migrations.ErrMissing) || errors.Is(unfit, migrations.ErrOld)
	switch {
	case behind && db.Migrates():
		d.warn("schema", fmt.Sprintf("at version %d of %d", state.Version, state.Latest), "nothing to do: serve brings it up")
		return
	case unfit != nil:
		d.fail("schema", unfit.Error(), "automation migrate status says more")
		return
	}
	d.ok("schema", "at version %d of %d", state.Version, state.Latest)
	keys, err := d.sealingKeys()
	var unset *config.Error
	switch {
	case errors.As(err, &unset):
		d.problems(err)
		return
	case err != nil:
		d.fail("secrets", err.Error(), "set AUTOMATION_SECRET_KEY: openssl rand -base64 32")
		return
	}
	if d.store, err = models.OpenReadOnly(ctx, db.DSN.Reveal(), models.WithKeys(keys...)); err != nil {
		d.store = nil
		d.fail("database", err.Error(), "run as the user of the service")
	}
}

// databaseName is the database without its password.
func (d *doctor) databaseName() string {
	if path := d.config.Database.SQLitePath(); path != "" {
		return "SQLite file " + path
	}
	u, err := url.Parse(d.config.Database.DSN.Reveal())
	if err != nil {
		return "PostgreSQL"
	}
	return "PostgreSQL " + u.Host + u.Path
}

// clock is how far this machine's clock is from that of the database, whose clock decides.
func (d *doctor) clock(ctx context.Context) {
	if d.store == nil {
		return
	}
	skew, err := d.store.Sync(ctx)
	switch {
	case err != nil:
		d.fail("clock", err.Error(), "see the check of the database")
	case d.store.Dialect() == models.SQLite:
		d.ok("clock", "this machine's own decides")
	case skew.Abs() > mostSkew:
		d.fail("clock", fmt.Sprintf("%s away from the database's", skew.Round(time.Millisecond)),
			"synchronise the clocks of both machines (NTP); more than "+mostSkew.String()+" is not served")
	default:
		d.ok("clock", "%s away from the database's", skew.Round(time.Millisecond))
	}
}

// chosen is the backend of new runs, as serve would choose it.
func (d *doctor) chosen(ctx context.Context) (config.Choice, error) {
	var live []string
	if d.store != nil {
		var err error
		if live, err = d.store.LiveBackends(ctx); err != nil {
			return config.Choice{}, err
		}
	}
	return chooseBackend(d.config, d.environ, live)
}

// backends is whether new runs can get boxes, without making one.
func (d *doctor) backends(ctx context.Context) {
	const name = "backend"
	choice, err := d.chosen(ctx)
	var problems *config.Error
	switch {
	case errors.As(err, &problems):
		d.problems(err)
		return
	case err != nil:
		d.fail(name, err.Error(), "see the check of the database")
		return
	case choice.Local:
		d.localMode(ctx)
		return
	}
	if err := backend.Check(choice.Backend, d.environ); err != nil {
		d.fail(name, err.Error(), "correct its variables; docs/OPERATIONS.md lists them")
		return
	}
	can := capabilities(choice.Backend)
	switch choice.Backend {
	case processBackend:
		d.processBoxes()
	case openhandsBackend:
		d.cloud(ctx)
	default:
		d.listBoxes(ctx, choice.Backend, can)
	}
	d.retention(choice.Backend, can)
	d.reachable(choice.Backend, can)
}

// processBoxes is what boxes as processes of this machine need.
func (d *doctor) processBoxes() {
	const name = "backend"
	dir := filepath.Join(d.config.Storage.DataDir, "boxes")
	if _, err := os.Stat(dir); err == nil && unix.Access(dir, unix.W_OK|unix.X_OK) != nil {
		d.fail(name, dir+" cannot be written to by this user", "run as the user of the service, or give it the folder")
		return
	}
	held := "cgroups where the service may make them, else supervisors, hold their processes"
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || !bytes.Contains(mounts, []byte(" cgroup2 ")) {
		held = "supervisors hold their processes, for cgroup v2 is not mounted"
		if d.environ["AUTOMATION_PROCESS_HOLD"] == "cgroup" {
			d.fail(name, "cgroup v2 is not mounted", "mount it, or unset AUTOMATION_PROCESS_HOLD")
			return
		}
	}
	d.ok(name, "process: boxes on this machine; %s", held)
}

// listBoxes has the provider list our boxes, which needs the credentials and changes nothing.
func (d *doctor) listBoxes(ctx context.Context, name string, can sandbox.Capabilities) {
	if !can.List {
		d.warn("backend", name+" has no list of boxes: its credentials cannot be tried without an effect", "")
		return
	}
	label, err := d.label(ctx)
	if err != nil {
		d.warn("backend", "the provider was not asked: "+err.Error(), "start serve once")
		return
	}
	executable, err := os.Executable()
	if err != nil {
		d.warn("backend", err.Error(), "")
		return
	}
	provider, err := backend.New(name, backend.Deps{DataDir: d.config.Storage.DataDir, Executable: executable}, d.environ)
	if err != nil {
		d.fail("backend", err.Error(), "let this machine reach it, or correct its variables; docs/OPERATIONS.md lists them")
		return
	}
	n := 0
	for _, err := range provider.List(ctx, label) {
		if err != nil {
			d.fail("backend", name+": "+err.Error(), "check its credentials and that it can be reached from here")
			return
		}
		n++
	}
	d.ok("backend", "%s answers and lists %d boxes of this deployment", name, n)
}

// label is that of the boxes of this deployment.
func (d *doctor) label(ctx context.Context) (sandbox.Label, error) {
	if id := d.config.Sandbox.DeploymentID; id != (sandbox.Label{}).Deployment {
		return sandbox.Label{Deployment: id}, nil
	}
	if d.store == nil {
		return sandbox.Label{}, errors.New("there is no database yet that names this deployment")
	}
	id, err := d.store.Deployment(ctx)
	return sandbox.Label{Deployment: id}, err
}

// retention is whether the provider would delete a paused box before it is due here.
func (d *doctor) retention(name string, can sandbox.Capabilities) {
	delay, own := d.config.Cleanup.Delay, can.NativeExpiry
	switch {
	case delay == 0:
		d.ok("retention", "a box is deleted when its run has ended")
	case !can.CanSuspend():
		d.warn("retention", fmt.Sprintf("boxes of %s cannot be paused: the delay of %s has no effect, they are deleted at once", name, span(delay)),
			"set AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=0, or use another backend")
	case own.Supported && own.Action == "delete" && own.Default > 0 && delay > own.Default:
		d.warn("retention", fmt.Sprintf("boxes are due after %s, but %s deletes them after %s by itself", span(delay), name, span(own.Default)),
			"lower AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS, or raise the provider's limit")
	default:
		d.ok("retention", "boxes are paused and deleted after %s", span(delay))
	}
}
