package router

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"automation/models"
	"automation/sandbox"
)

// reclaimSandbox is POST /v1/sandboxes/{id}/reclaim: the box's own agent server frees what can be rebuilt, or only plans it,
// and its answer is passed on (S0-001). A box that does not run is not woken for it.
func (s *server) reclaimSandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	dry := get[bool](c.query(r, reclaimQuery...), "dry_run")
	if err := c.err(); err != nil {
		return err
	}
	b, err := s.wish(w, r, who)
	if err != nil {
		return err
	}
	answer, err := s.reclaim(r.Context(), b, who, dry)
	if err != nil {
		return err
	}
	return ok(w, answer)
}

// awake says why nothing can be done in a box that does not run and is not woken for it; nil: it runs.
func awake(b *models.Sandbox) error {
	switch {
	case b.Desired == models.WantDeleted:
		return models.ErrDeletionOrdered
	case b.Desired != models.WantRunning || b.Observed != models.SeenRunning:
		p := conflict("not_running", "The sandbox is not running: resume it first")
		p.details = map[string]any{"current_state": b.Observed}
		return p
	}
	return nil
}

func (s *server) reclaim(ctx context.Context, b *models.Sandbox, who Caller, dry bool) (json.RawMessage, error) {
	if err := awake(b); err != nil {
		return nil, err
	}
	b, leave, err := s.enter(ctx, b, who.name())
	if err != nil {
		return nil, err
	}
	defer leave()
	agent := sandbox.AgentOf(b, nil)
	info, err := agent.ServerInfo(ctx)
	if err != nil {
		return nil, agentProblem(err)
	}
	if !info.Has(sandbox.FeatureStorageReclaim) {
		return nil, conflict("unsupported", "The agent server of this sandbox cannot reclaim storage")
	}
	began := s.Store.Now()
	done, err := agent.Reclaim(ctx, dry, sandbox.ReclaimPolicy)
	if s.Reclaimed != nil && !dry {
		s.Reclaimed(done.FreedBytes, s.Store.Now().Sub(began), err)
	}
	if err != nil {
		return nil, agentProblem(err)
	}
	record := context.WithoutCancel(ctx)
	if !dry {
		err = s.did(record, b, who, models.Event{What: "reclaimed", Reason: "reclaimed by hand", Bytes: done.FreedBytes}, began)
	}
	if info.Has(sandbox.FeatureStorageStatus) { // somebody is connected anyway (S0-152)
		err = errors.Join(err, s.learnStorage(ctx, b, agent))
	}
	return done.Answer, err
}

// did appends an event of what a caller had done in a box.
func (s *server) did(ctx context.Context, b *models.Sandbox, who Caller, e models.Event, began time.Time) error {
	e.OrgID, e.SandboxID, e.RunID, e.AutomationID = b.OrgID, &b.ID, b.RunID, b.AutomationID
	e.Actor, e.Outcome, e.DurationMS = who.name(), models.EventOK, s.Store.Now().Sub(began).Milliseconds()
	return s.Store.AppendEvent(ctx, e)
}

// learnStorage takes down what the box says of its disk now. A box that does not say is no failure of what was asked for.
func (s *server) learnStorage(ctx context.Context, b *models.Sandbox, agent sandbox.Agent) error {
	status, err := agent.Storage(ctx)
	if err != nil {
		s.log.WarnContext(ctx, "storage status not read", "workspace_id", b.ID, "error", err)
		return nil
	}
	return s.Store.RecordStorage(context.WithoutCancel(ctx), b.ID, status)
}

// agentProblem is the answer for a failed call of a box's agent server.
func agentProblem(err error) error {
	if answer := new(sandbox.AgentError); errors.As(err, &answer) {
		return badGateway("The sandbox answered: " + answer.Detail)
	}
	if errors.Is(err, sandbox.ErrUnreachable) {
		return unavailable("sandbox_agent_unavailable", "The sandbox does not answer", 5*time.Second)
	}
	return err
}
