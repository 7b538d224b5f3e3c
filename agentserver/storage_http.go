package agentserver

import (
	"errors"
	"net/http"

	"automation/agentserver/storage"
)

// storageStatus tells what takes space and what a pass would free. It is no activity (S0-075).
func (s *Server) storageStatus(w http.ResponseWriter, r *http.Request) {
	status, err := s.storage.Status(r.Context())
	if err != nil {
		internalError(w, "500: "+err.Error())
		return
	}
	respond(w, http.StatusOK, status)
}

// reclaim runs one pass, or plans one with dry_run, and answers with what it did (S0-061, S0-062). It is no activity.
func (s *Server) reclaim(w http.ResponseWriter, r *http.Request) {
	request, ok := reclaimRequest(w, r)
	if !ok {
		return
	}
	result, err := s.storage.Reclaim(r.Context(), request)
	var busy *storage.BusyError
	switch {
	case errors.As(err, &busy):
		respond(w, http.StatusConflict, struct {
			Detail string `json:"detail"`
			PlanID string `json:"plan_id"`
		}{"A reclaim is running", busy.PlanID})
	case errors.Is(err, storage.ErrUnknownPlan):
		refuse(w, http.StatusNotFound, "Plan not found")
	case err != nil:
		internalError(w, "500: "+err.Error())
	default:
		respond(w, http.StatusOK, result)
	}
}

// reclaimRequest reads the body; an empty one asks for a pass by policy. false: the answer has been written.
func reclaimRequest(w http.ResponseWriter, r *http.Request) (storage.Request, bool) {
	body, ok := readBody(w, r)
	if !ok {
		return storage.Request{}, false
	}
	var check fields
	var request storage.Request
	request.DryRun = check.flag(body, "dry_run")
	request.PlanID, _ = check.text(body, "plan_id")
	if tier, there := check.text(body, "tier"); there {
		request.Tier = storage.Tier(tier)
		names := make([]string, len(storage.Tiers))
		known := false
		for i, name := range storage.Tiers {
			names[i] = string(name)
			known = known || name == request.Tier
		}
		if !known {
			check.add(notOneOf([]any{"body", "tier"}, tier, "literal_error", names))
		}
	}
	request.ConversationIDs = check.texts(body, "conversation_ids")
	return request, !check.answered(w)
}
