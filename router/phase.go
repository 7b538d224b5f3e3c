package router

import (
	"errors"
	"net/http"

	"github.com/google/uuid"

	"automation/models"
)

// setPhase is POST /v1/runs/{id}/phase (contract section 3.7).
func (s *server) setPhase(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	id := c.pathID(r, "run_id")
	in, err := s.body(&c, w, r, phaseReport, false)
	if err != nil {
		return err
	}
	run, err := s.callbackRun(r, who, id)
	if err != nil {
		return err
	}
	set := s.Store.SetPhase(r.Context(), run.ID, get[string](in, "phase"))
	if set != nil && !errors.Is(set, models.ErrConflict) {
		return as404(set, noRun)
	}
	run, err = s.Store.Run(r.Context(), uuid.Nil, id)
	if err != nil {
		return as404(err, noRun)
	}
	if set != nil {
		return conflict("wrong_state", "Run is "+string(run.Status)+", expected PENDING or RUNNING")
	}
	return ok(w, s.showRun(run))
}
