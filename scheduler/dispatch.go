package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"

	"automation/config"
	"automation/loop"
	"automation/models"
	"automation/sandbox"
	"automation/testhooks"
)

// Blobs reads the tarballs that automations were uploaded as; fs.ErrNotExist when there is none.
type Blobs interface {
	Open(ctx context.Context, key string) (io.ReadCloser, error)
}

// Dispatch is the duty that executes runs: it claims one, gets a box for it, and starts its command (contract sections 3.4,
// 3.5 and 4). At most MaxInFlight are executed at once, each by a worker that claims when it is free.
type Dispatch struct {
	Store   *models.Store
	Backend sandbox.Backend // where new runs get their boxes; nil in local mode
	Place   models.Place    // of Backend
	Local   LocalMode       // where Backend is nil
	Blobs   Blobs
	Decide  func(models.Ending) models.Decision // what becomes of the box of a run that ends here
	// Contract, where set, is what the provider's own contract puts into a command's environment, its credential included, in
	// place of a run token (OpenHands: the user's minted key).
	Contract func(ctx context.Context, owner sandbox.Owner) (map[string]string, error)

	Deployment uuid.UUID
	APIURL     string // public address of the API, without a slash at its end
	Settings   config.Dispatch
	HTTP       *http.Client // for the agent servers of boxes; nil: the client's own

	Log    *slog.Logger
	Nudge  loop.Nudge // woken when a run was created
	Stale  loop.Nudge // woken when a command was started
	Settle func()     // woken when boxes were ordered
	// Started is told of each run whose command is about to start; nil: nobody.
	Started func(run *models.Run)
}

// LocalMode says where runs execute that share one agent server and have no box.
type LocalMode struct {
	URL           string
	Key           config.Secret
	InnerURL      string // URL as the command sees it; "" for the same
	WorkspaceBase string
	CallbackKey   config.Secret // AUTOMATION_LOCAL_API_KEY, which the contract hands to the command
}

// stopGrace is how long executions may go on when the service stops; what is not started by then is given back.
const stopGrace = 20 * time.Second

// Loop returns the duty.
func (d *Dispatch) Loop() loop.Loop {
	return loop.Loop{
		Name: "dispatch", Every: d.Settings.Interval, Batch: 1, Workers: d.Settings.MaxInFlight,
		Timeout: loop.Unbounded, Grace: stopGrace,
		Pass: d.pass, Until: d.Store.NextDispatchAt, Now: d.Store.Now, Nudge: d.Nudge,
	}
}

// claim says what this process may take, a run at a time.
func (d *Dispatch) claim() models.DispatchClaim {
	return models.DispatchClaim{
		Limit: 1, Backend: d.Place.Backend, Location: d.Place.Location,
		MaxAttempts: d.Settings.ProvisionMaxAttempts, Budget: d.Settings.ReadyTimeout + d.Settings.TimeoutMargin,
		Lease: leaseTime, DefaultRun: d.Settings.DefaultRun,
	}
}

// pass claims one run and executes it up to the start of its command. The look before the claim spares idle workers a write.
func (d *Dispatch) pass(ctx context.Context) (int, error) {
	at, err := d.Store.NextDispatchAt(ctx)
	if err != nil || at == nil || at.After(d.Store.Now()) {
		return 0, err
	}
	claimed, exhausted, err := d.Store.ClaimDispatch(ctx, d.claim())
	if err != nil {
		return 0, fmt.Errorf("claim runs: %w", err)
	}
	if len(claimed)+len(exhausted) == 0 {
		return 0, nil
	}
	if len(claimed) > 0 {
		testhooks.Reached(testhooks.DispatchClaimed)
	}
	d.Nudge.Wake() // there may be more: another worker looks while this one is busy
	for _, run := range exhausted {
		interrupted := &provisioning{code: "sandbox_error", observed: models.SeenProvisioning, class: "interrupted"}
		err = errors.Join(err, d.fail(ctx, run, interrupted.failure(run.Attempt)))
	}
	for _, c := range claimed {
		err = errors.Join(err, d.execute(ctx, c))
	}
	return len(claimed) + len(exhausted), err
}

// execute carries a claimed run to the start of its command, or ends it. Its error is one that the run does not tell about.
func (d *Dispatch) execute(ctx context.Context, c models.Dispatched) (err error) {
	ctx, end := traced(ctx, c.Run)
	defer func() { end(err) }()
	log := d.Log.With("run_id", c.Run.ID)
	log.InfoContext(ctx, "run claimed", "attempt", c.Run.Attempt)
	defer func() {
		if p := recover(); p != nil {
			log.ErrorContext(ctx, "execution panicked", "error", p)
			err = d.fail(ctx, c.Run, &failure{
				status: models.RunFailed, text: "Internal error",
				detail: models.StatusDetail{
					Phase: "dispatch", Kind: "unknown", Detail: "Internal error", Source: "automation_service", Operation: "execute_run",
				},
			})
		}
	}()
	if c.Box == nil {
		local := &execution{Dispatched: c, agent: d.localAgent(), work: localWorkspace(c.Run.ID, d.Local.WorkspaceBase)}
		return d.conclude(ctx, c.Run, d.start(ctx, local))
	}
	return d.provision(ctx, c)
}

// conclude deals with how an execution ended: it fails the run where that is what err says. Other errors are returned.
func (d *Dispatch) conclude(ctx context.Context, run *models.Run, err error) error {
	var failed *failure
	switch {
	case err == nil:
		d.Stale.Wake()
		return nil
	case ctx.Err() != nil:
		return nil //nolint:nilerr // we are stopping: the run is claimed again when its lease was given back
	case errors.As(err, &failed):
		d.Log.WarnContext(ctx, "run not started", "run_id", run.ID, "error", failed)
		return d.fail(ctx, run, failed)
	case errors.Is(err, models.ErrConflict), errors.Is(err, models.ErrLeaseLost),
		errors.Is(err, sandbox.ErrOrdered), errors.Is(err, models.ErrDeletionOrdered):
		d.Log.InfoContext(ctx, "run left: it was ended or taken over", "run_id", run.ID, "error", err)
		return nil
	}
	return fmt.Errorf("execute run %s: %w", run.ID, err)
}

// fail ends a run whose command was not started: its box, if any, is deleted at once (design section 5, Disposition).
func (d *Dispatch) fail(ctx context.Context, run *models.Run, f *failure) error {
	outcome := models.Outcome{
		Status: f.status, StatusDetail: f.detail.Seen(d.Store.Now(), run.StatusDetail),
		Actor: "dispatch", Reason: f.detail.Kind, NotStarted: true,
		IfAttempt: run.Attempt, // another process may have taken the run over, and what failed here says nothing about its attempt
	}
	if f.text != "" {
		outcome.ErrorDetail = &f.text
	}
	done, err := d.Store.Finish(ctx, run.ID, outcome, d.Decide)
	if err != nil {
		return fmt.Errorf("finish run %s: %w", run.ID, err)
	}
	d.Settle()
	if done.Won && f.disable != "" { // the run can never succeed as the automation is
		err = d.Store.DisableBroken(ctx, run, f.disable, outcome.StatusDetail)
	}
	return errors.Join(err, d.Store.AfterEnd(ctx, done))
}

func (d *Dispatch) localAgent() sandbox.Agent {
	return sandbox.Agent{URL: d.Local.URL, Key: d.Local.Key.Reveal(), HTTP: d.HTTP}
}

// runTime is how long the command of an automation may run.
func (d *Dispatch) runTime(a *models.Automation) time.Duration {
	if a.TimeoutSeconds != nil {
		return time.Duration(*a.TimeoutSeconds) * time.Second
	}
	return d.Settings.DefaultRun
}
