package watchdog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"automation/loop"
	"automation/models"
	"automation/sandbox"
)

const (
	orphansEvery = 10 * time.Minute
	// quarantine is how long a listed box that no row owns is left alone: its row may be about to be written by a replica whose
	// clock or database we see late.
	quarantine = 15 * time.Minute
	listWithin = 5 * time.Minute
)

// Orphans is the duty that compares what a provider lists under our deployment's label with our rows (design section 5): what
// no row owns is quarantined, then deleted by its new row's order; a row whose box is not listed is looked at by the settler.
// Nothing is concluded from a list that broke off.
func (w *Watchdog) Orphans(p models.Place) loop.Loop {
	return loop.Loop{
		Name: "orphans " + p.Backend, Every: orphansEvery, Timeout: listWithin,
		Pass: func(ctx context.Context) (int, error) { return w.orphans(ctx, p) },
	}
}

func (w *Watchdog) orphans(ctx context.Context, p models.Place) (int, error) {
	began := w.Store.Now()
	defer func() { w.swept("orphan", began, 0, 0) }()
	var listed []models.Listed
	shown := map[string]bool{}
	for obs, err := range w.Backends[p].List(ctx, sandbox.Label{Deployment: w.Deployment}) {
		if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, sandbox.ErrBreakerOpen) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("list boxes of %s: %w", p.Backend, err)
		}
		shown[obs.Identity.ProviderID] = true
		listed = append(listed, models.Listed{
			Kind: obs.Identity.Kind, ProviderID: obs.Identity.ProviderID, WorkspaceID: obs.Label.WorkspaceID, Observed: obs.State,
		})
	}
	changed := 0
	for _, l := range listed {
		found, err := w.Store.SightOrphan(ctx, p, l, quarantine)
		if err != nil {
			return changed, fmt.Errorf("sight box %s: %w", l.ProviderID, err)
		}
		if found {
			w.Log.WarnContext(ctx, "box without a row found", "provider", p.Backend, "sandbox_id", l.ProviderID, "workspace_id", l.WorkspaceID)
			changed++
		}
	}
	missing, err := w.lookAtMissing(ctx, p, began, shown)
	if changed+missing > 0 {
		w.settleSoon()
	}
	return changed + missing, err
}

// lookAtMissing has the settler inspect boxes that were known before the list began and are not in it. Rows are read after the
// list, so a box that came or went meanwhile is not misjudged.
func (w *Watchdog) lookAtMissing(ctx context.Context, p models.Place, began time.Time, shown map[string]bool) (int, error) {
	known, err := w.Store.KnownBoxes(ctx, p, began)
	if err != nil {
		return 0, fmt.Errorf("read the boxes of %s: %w", p.Backend, err)
	}
	missing := 0
	for _, k := range known {
		if shown[k.ProviderID] {
			continue
		}
		if err := w.Store.NudgeBox(ctx, k.BoxID); err != nil {
			return missing, fmt.Errorf("nudge box %s: %w", k.BoxID, err)
		}
		missing++
	}
	return missing, nil
}
