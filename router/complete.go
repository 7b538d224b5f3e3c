package router

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"automation/models"
)

// callbackRun reads of the run in the path of a callback what it is checked with. It is not scoped by organization, for the contract tells a stranger
// 403 and an unknown run 404 (S1-019): only the automation's creator, or the run itself with its token, may go on.
func (s *server) callbackRun(r *http.Request, who Caller, id uuid.UUID) (*models.Run, error) {
	run, err := s.Store.RunOwner(r.Context(), id)
	if err != nil {
		return nil, as404(err, noRun)
	}
	if who.runID != uuid.Nil {
		if who.runID != run.ID {
			return nil, forbidden(notYours)
		}
	} else if run.OrgID != who.OrgID || run.OwnerID != who.UserID {
		return nil, forbidden(notYours)
	}
	return run, nil
}

// completeRun is POST /v1/runs/{id}/complete (contract section 3.6). One transaction writes the status, the stamp and the
// order for the box (S1-010); the answer waits for nothing else (S1-015).
func (s *server) completeRun(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	id := c.pathID(r, "run_id")
	in, err := s.body(&c, w, r, completion, false)
	if err != nil {
		return err
	}
	run, err := s.callbackRun(r, who, id)
	if err != nil {
		return err
	}
	outcome := s.outcomeOf(in, run)
	done, err := s.Store.Finish(r.Context(), run.ID, outcome, s.decide)
	if err == nil && !done.Won {
		done, err = s.lateCallback(r, run.ID, outcome)
	}
	if err != nil {
		return err
	}
	return s.ended(w, r, done)
}

// ended answers with the run as it is now, and wakes what has work with its box. What follows for the automation cannot change
// the answer: the run has ended.
func (s *server) ended(w http.ResponseWriter, r *http.Request, done models.Finished) error {
	if err := s.Store.AfterEnd(context.WithoutCancel(r.Context()), done); err != nil {
		s.log.ErrorContext(r.Context(), "the end of a run was not followed up", "run_id", done.Run.ID, "error", err)
	}
	if done.Decision.Box != models.BoxNothing || done.Run.AftercareAt != nil {
		nudge(s.Nudge.Settle)
	}
	if done.Decision.Due != nil {
		nudge(s.Nudge.Janitor)
	}
	return ok(w, s.showRun(done.Run))
}

// lateCallback is a callback that did not find its run RUNNING: a COMPLETED one flips a run that only timed out, once
// (S1-017); of any other what it tells is kept, and it is refused (S1-018).
func (s *server) lateCallback(r *http.Request, id uuid.UUID, o models.Outcome) (models.Finished, error) {
	run, err := s.Store.Run(r.Context(), uuid.Nil, id)
	if err != nil {
		return models.Finished{}, err
	}
	timedOut := run.ErrorDetail != nil && strings.HasPrefix(*run.ErrorDetail, models.TimedOutPrefix)
	if o.Status == models.RunCompleted && run.Status == models.RunFailed && timedOut {
		done, err := s.Store.Reconcile(r.Context(), id, o, s.decide)
		if err != nil || done.Won {
			return done, err
		}
		if run, err = s.Store.Run(r.Context(), uuid.Nil, id); err != nil {
			return models.Finished{}, err
		}
	}
	if run.Status.Terminal() {
		if err := s.Store.RecordLateCallback(r.Context(), id, o.ConversationID, o.Cost, o.ErrorDetail); err != nil {
			return models.Finished{}, err
		}
	}
	p := conflict("wrong_state", "Run is "+string(run.Status)+", expected RUNNING")
	p.details = map[string]any{"current_state": run.Status}
	return models.Finished{}, p
}

// outcomeOf makes an Outcome of a checked callback.
func (s *server) outcomeOf(in values, run *models.Run) models.Outcome {
	o := models.Outcome{
		Status: models.RunStatus(get[string](in, "status")), Cost: opt[float64](in, "cost"),
		Actor: "callback", Reason: "callback",
	}
	if id := get[string](in, "conversation_id"); id != "" {
		o.ConversationID = &id
	}
	if o.Status == models.RunFailed {
		text, detail := failureOf(in["error"])
		o.ErrorDetail = &text
		o.StatusDetail = detail.Seen(s.Store.Now(), run.StatusDetail)
	}
	return o
}

// failureOf reads the error of a callback: a text, an object with code, detail and source, or nothing.
func failureOf(v any) (string, models.StatusDetail) {
	d := models.StatusDetail{Phase: "callback", Kind: "execution_error", Source: "sdk_callback"}
	event, isObject := v.(map[string]any)
	if !isObject {
		d.Detail = "Completion callback reported failure"
		if text, _ := v.(string); text != "" {
			d.Detail = text
		}
		return d.Detail, d
	}
	word := func(names ...string) string {
		for _, name := range names {
			if s, _ := event[name].(string); s != "" {
				return s
			}
		}
		return ""
	}
	d.Code, d.Detail = word("code"), word("detail", "message")
	var more []string
	if kind, known := classify(event, d.Code); known {
		d.Kind, d.Transient = kind.Kind, kind.Retryable
		if kind.UserAction != "none" {
			d.UserAction = kind.UserAction
		}
		more = append(more, "kind="+d.Kind)
	}
	if source := word("source"); source != "" {
		d.Source = source
		more = append(more, "source="+source)
	}
	text := d.Detail
	if text == "" {
		text = "Completion callback reported failure"
	}
	if d.Detail == "" {
		d.Detail = text
	}
	if d.Code != "" {
		text = d.Code + ": " + text
	}
	if len(more) > 0 {
		text += " [" + strings.Join(more, ", ") + "]"
	}
	d.FormattedDetail = text
	return text, d
}

// classification says what kind of failure it is and what a person can do.
type classification struct {
	Kind       string `json:"kind"`
	Retryable  bool   `json:"retryable"`
	UserAction string `json:"user_action"`
}

// sdkCodes are the errors of the SDK that it gives no classification for.
var sdkCodes = map[string]classification{
	"LLMAuthenticationError":     {Kind: "auth", UserAction: "settings"},
	"LLMRateLimitError":          {Kind: "rate_limit", Retryable: true, UserAction: "retry"},
	"LLMServiceUnavailableError": {Kind: "transient", Retryable: true, UserAction: "retry"},
	"LLMTimeoutError":            {Kind: "transient", Retryable: true, UserAction: "retry"},
}

// classify finds the classification of an SDK's error event: its own, else that of its code. Other objects have none.
func classify(event map[string]any, code string) (classification, bool) {
	switch event["source"] {
	case "agent", "user", "environment", "hook":
	default:
		return classification{}, false
	}
	if own, given := event["classification"].(map[string]any); given {
		var c classification
		text, err := json.Marshal(own)
		if err == nil && json.Unmarshal(text, &c) == nil && c.Kind != "" {
			return c, true
		}
	}
	c, known := sdkCodes[code]
	return c, known
}
