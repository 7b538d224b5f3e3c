package router

import (
	"net/http"

	"automation/models"
)

type tagList struct {
	Tags []models.TagCount `json:"tags"`
}

// listTags is GET /v1/tags (contract section 2.3): what the organization's live automations are tagged with.
func (s *server) listTags(w http.ResponseWriter, r *http.Request, who Caller) error {
	tags, err := s.Store.Tags(r.Context(), who.OrgID)
	if err != nil {
		return err
	}
	return ok(w, tagList{tags})
}
