package router

import (
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"automation/models"
)

const noSweep = "Sweep not found"

// planSweep is POST /v1/sweeps/plan: what is due, or will be soon, is listed and stored; nothing is ordered.
func (s *server) planSweep(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in, err := s.body(&c, w, r, sweepFilter, true)
	if err != nil {
		return err
	}
	planned, err := s.Store.PlanSweep(r.Context(), models.SweepFilter{
		OrgID: who.OrgID, DueWithin: time.Duration(get[int64](in, "due_within_seconds")) * time.Second, Backend: get[string](in, "backend"),
	}, who.name())
	if err != nil {
		return err
	}
	return created(w, s.showSweep(planned))
}

// applySweep is POST /v1/sweeps/{id}/apply: exactly what the plan showed and is still so is ordered deleted. Once applied, the
// first result is the answer. A box whose date has not come is deleted by hand, which asks for confirmation (S0-155).
func (s *server) applySweep(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in, err := s.body(&c, w, r, confirmation, true)
	if err != nil {
		return err
	}
	if !who.may(manageAutomations) {
		return forbidden("Requires " + manageAutomations + " permission")
	}
	planned, err := s.sweep(r, who)
	if err != nil {
		return err
	}
	if get[string](in, "confirm") != historyLost && s.losesEarly(planned) {
		return confirmationNeeded("Some of these sandboxes are not due yet, and their history would be lost: add confirm=" + historyLost)
	}
	applied, err := s.Store.ApplySweep(r.Context(), who.OrgID, planned.ID, who.name(), models.AttachedHold)
	if errors.Is(err, models.ErrNotFound) {
		return conflict("no_plan", "This sweep is no plan: it was made by the janitor")
	} else if err != nil {
		return err
	}
	nudge(s.Nudge.Settle)
	return ok(w, s.showSweep(applied))
}

// losesEarly reports whether applying the plan would lose the history of a box before its date.
func (s *server) losesEarly(w *models.Sweep) bool {
	if w.AppliedAt != nil {
		return false
	}
	for _, i := range w.Items {
		if i.DueAt.After(s.Store.Now()) && !s.Capabilities(i.Backend).KeepsHistory {
			return true
		}
	}
	return false
}

// sweep reads the sweep in the path, within the caller's organization.
func (s *server) sweep(r *http.Request, who Caller) (*models.Sweep, error) {
	id, err := uuid.Parse(idOf(r))
	if err != nil {
		return nil, notFound(noSweep)
	}
	w, err := s.Store.Sweep(r.Context(), who.OrgID, id)
	return w, as404(err, noSweep)
}

// getSweep is GET /v1/sweeps/{id}.
func (s *server) getSweep(w http.ResponseWriter, r *http.Request, who Caller) error {
	found, err := s.sweep(r, who)
	if err != nil {
		return err
	}
	return one(w, r, s.showSweep(found))
}

// listSweeps is GET /v1/sweeps: plans and passes of the janitor that ordered something, newest first, without their boxes.
func (s *server) listSweeps(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in := c.query(r, paging...)
	if err := c.err(); err != nil {
		return err
	}
	limit, offset := page(in)
	sweeps, total, err := s.Store.ListSweeps(r.Context(), who.OrgID, limit, offset)
	if err != nil {
		return err
	}
	list := make([]sweepSummary, 0, len(sweeps))
	for _, one := range sweeps {
		list = append(list, s.showSweepSummary(one))
	}
	return ok(w, sweepList{list, total})
}

// sweepState is where a sweep stands.
type sweepState string

const (
	sweepPlanned sweepState = "planned"
	sweepApplied sweepState = "applied"
	sweepExpired sweepState = "expired"
)

// sweepSummary is a sweep without its boxes.
type sweepSummary struct {
	ID               uuid.UUID        `json:"id"`
	Kind             models.SweepKind `json:"kind"`
	State            sweepState       `json:"state"`
	DueWithinSeconds int64            `json:"due_within_seconds"`
	Backend          *string          `json:"backend"`
	CreatedAt        stamp            `json:"created_at"`
	CreatedBy        string           `json:"created_by"`
	ExpiresAt        *stamp           `json:"expires_at"`
	AppliedAt        *stamp           `json:"applied_at"`
	AppliedBy        *string          `json:"applied_by"`
	LeftOut          int              `json:"left_out"` // due boxes beyond what one plan lists
	Counts           sweepCounts      `json:"counts"`
}

// sweepCounts are the boxes of a sweep by outcome.
type sweepCounts struct {
	Total    int `json:"total"`
	Planned  int `json:"planned"`
	Ordered  int `json:"ordered"`
	Kept     int `json:"skipped_kept"`
	Attached int `json:"skipped_attached"`
	Changed  int `json:"skipped_changed"`
	Gone     int `json:"gone"`
}

// sweepObject is a sweep with its boxes.
type sweepObject struct {
	sweepSummary
	Items []sweepItem `json:"items"`
}

// sweepItem is one box of a sweep. Export says what is left of its history when it is deleted.
type sweepItem struct {
	SandboxID    uuid.UUID           `json:"sandbox_id"`
	RunID        uuid.UUID           `json:"run_id"`
	AutomationID *uuid.UUID          `json:"automation_id"`
	Automation   *string             `json:"automation_name"`
	Backend      string              `json:"backend"`
	DueAt        stamp               `json:"due_at"`
	SizeBytes    *int64              `json:"size_bytes"`
	Export       sweepExport         `json:"export"`
	Outcome      models.SweepOutcome `json:"outcome"`
}

type sweepExport string

const (
	exportNone     sweepExport = "none"
	exportProvider sweepExport = "kept_by_provider"
	exportFirst    sweepExport = "exported_first" // the box is woken for it where needed
)

type sweepList struct {
	Sweeps []sweepSummary `json:"sweeps"`
	Total  int            `json:"total"`
}

func (s *server) showSweepSummary(w *models.Sweep) sweepSummary {
	o := sweepSummary{
		ID: w.ID, Kind: w.Kind, State: sweepPlanned, DueWithinSeconds: w.DueWithinSeconds, CreatedAt: stamp(w.CreatedAt),
		CreatedBy: w.CreatedBy, ExpiresAt: optStamp(w.ExpiresAt), AppliedAt: optStamp(w.AppliedAt), LeftOut: w.LeftOut,
		Counts: sweepCounts{
			Planned: w.Counts[models.SweepPlanned], Ordered: w.Counts[models.SweepOrdered], Kept: w.Counts[models.SweepKept],
			Attached: w.Counts[models.SweepAttached], Changed: w.Counts[models.SweepChanged], Gone: w.Counts[models.SweepGone],
		},
	}
	for _, n := range w.Counts {
		o.Counts.Total += n
	}
	if w.Backend != "" {
		o.Backend = &w.Backend
	}
	switch {
	case w.AppliedAt != nil:
		o.State, o.AppliedBy = sweepApplied, &w.AppliedBy
	case w.ExpiresAt != nil && !w.ExpiresAt.After(s.Store.Now()):
		o.State = sweepExpired
	}
	return o
}

func (s *server) showSweep(w *models.Sweep) sweepObject {
	o := sweepObject{sweepSummary: s.showSweepSummary(w), Items: make([]sweepItem, 0, len(w.Items))}
	for _, i := range w.Items {
		export, can := exportNone, s.Capabilities(i.Backend)
		switch {
		case s.Settings.Exports(can):
			export = exportFirst
		case can.KeepsHistory:
			export = exportProvider
		}
		o.Items = append(o.Items, sweepItem{
			SandboxID: i.SandboxID, RunID: i.RunID, AutomationID: i.AutomationID, Automation: i.AutomationName, Backend: i.Backend,
			DueAt: stamp(i.DueAt), SizeBytes: i.SizeBytes, Export: export, Outcome: i.Outcome,
		})
	}
	return o
}
