package watchdog

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"

	"automation/loop"
	"automation/models"
	"automation/sandbox"
)

// Watch yields what a provider tells of our boxes without being asked, until ctx ends or the provider goes away, which is its
// error. Its first change is the zero one: from then on nothing is missed.
type Watch func(ctx context.Context) iter.Seq2[sandbox.Change, error]

// watchAgain is how soon a watch that broke off is begun anew.
const watchAgain = 2 * time.Second

// Watching is the duty that hears from a provider what happens to its boxes, so that nobody has to ask on a timer: the settler
// looks at a box whose row says otherwise. After each beginning it compares everything once.
func (w *Watchdog) Watching(p models.Place) loop.Loop {
	return loop.Loop{
		Name: "watch " + p.Backend, Every: watchAgain, Timeout: loop.Unbounded,
		Pass: func(ctx context.Context) (int, error) { return w.watch(ctx, p) },
	}
}

func (w *Watchdog) watch(ctx context.Context, p models.Place) (heard int, err error) {
	for change, err := range w.Watches[p](ctx) {
		switch {
		case ctx.Err() != nil:
			return heard, nil
		case err != nil:
			return heard, fmt.Errorf("watch %s: %w", p.Backend, err)
		case change.WorkspaceID == uuid.Nil:
			err = w.compare(ctx, p)
		default:
			err = w.lookAtUnlike(ctx, p, change)
		}
		if err != nil {
			return heard, err
		}
		heard++
	}
	return heard, nil
}

// compare looks at every box whose row differs from what the provider lists.
func (w *Watchdog) compare(ctx context.Context, p models.Place) error {
	began, shown := w.Store.Now(), map[string]bool{}
	for obs, err := range w.Backends[p].List(ctx, sandbox.Label{Deployment: w.Deployment}) {
		if err != nil {
			return fmt.Errorf("list boxes of %s: %w", p.Backend, err)
		}
		shown[obs.Identity.ProviderID] = true
		if err := w.lookAtUnlike(ctx, p, sandbox.Change{WorkspaceID: obs.Label.WorkspaceID, State: obs.State}); err != nil {
			return err
		}
	}
	missing, err := w.lookAtMissing(ctx, p, began, shown)
	if missing > 0 {
		w.settleSoon()
	}
	return err
}

func (w *Watchdog) lookAtUnlike(ctx context.Context, p models.Place, c sandbox.Change) error {
	unlike, err := w.Store.NudgeUnlike(ctx, c.WorkspaceID, c.State)
	if err != nil {
		return err
	}
	if unlike {
		w.Log.InfoContext(ctx, "the provider tells of a change", "provider", p.Backend, "workspace_id", c.WorkspaceID, "state", c.State)
		w.SettleNudges[p].Wake()
	}
	return nil
}
