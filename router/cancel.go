package router

import (
	"net/http"

	"github.com/google/uuid"

	"automation/models"
)

// cancelRun is POST /v1/runs/{id}/cancel (contract section 3.7): the run is CANCELLED and its box ordered deleted in one
// transaction, whatever keep_alive and the delay say (S1-023).
func (s *server) cancelRun(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	id := c.pathID(r, "run_id")
	if _, err := s.body(&c, w, r, nothing, true); err != nil {
		return err
	}
	run, err := s.Store.Run(r.Context(), uuid.Nil, id)
	if err != nil {
		return as404(err, noRun)
	}
	if run.OrgID != who.OrgID {
		return forbidden(notYours)
	}
	if err := who.mustManage(run.OwnerID); err != nil {
		return err
	}
	text := "Cancelled by user"
	done, err := s.Store.Finish(r.Context(), id, models.Outcome{
		Status: models.RunCancelled, ErrorDetail: &text, Actor: who.name(), Reason: "cancelled",
		From: []models.RunStatus{models.RunPending, models.RunRunning},
	}, s.decide)
	if err != nil {
		return as404(err, noRun)
	}
	if done.Won {
		return s.ended(w, r, done)
	}
	if run, err = s.Store.Run(r.Context(), who.OrgID, id); err != nil {
		return as404(err, noRun)
	}
	return conflict("wrong_state", "Run is "+string(run.Status)+", only PENDING or RUNNING runs can be cancelled")
}
