package router

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"slices"

	"github.com/google/uuid"

	"automation/models"
)

const noRun = "Run not found"

var runStatus = oneOf("enum", string(models.RunPending), string(models.RunRunning), string(models.RunCompleted),
	string(models.RunFailed), string(models.RunCancelled), string(models.RunSkipped))

var runQuery = append(slices.Clone(paging),
	field{name: "automation_id", rule: identifier},
	field{name: "status", many: true, rule: runStatus})

type runList struct {
	Runs  []runObject `json:"runs"`
	Total int         `json:"total"`
}

// automationRunList counts all runs of the automation; statuses without a run are left out.
type automationRunList struct {
	runList
	StatusCounts map[models.RunStatus]int `json:"status_counts"`
}

func (s *server) showRuns(runs []*models.Run) []runObject {
	list := make([]runObject, 0, len(runs))
	for _, r := range runs {
		list = append(list, s.showRun(r))
	}
	return list
}

// listAutomationRuns is GET /v1/{id}/runs: the counts cover all runs of the automation.
func (s *server) listAutomationRuns(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	id := c.pathID(r, "automation_id")
	in := c.query(r, paging...)
	if err := c.err(); err != nil {
		return err
	}
	if _, err := s.Store.Automation(r.Context(), who.OrgID, id); err != nil {
		return as404(err, noAutomation)
	}
	limit, offset := page(in)
	runs, total, err := s.Store.ListRuns(r.Context(), models.RunFilter{
		OrgID: who.OrgID, AutomationID: &id, Limit: limit, Offset: offset,
	})
	if err != nil {
		return err
	}
	counts, err := s.Store.RunStatusCounts(r.Context(), id)
	if err != nil {
		return err
	}
	return ok(w, automationRunList{runList{s.showRuns(runs), total}, counts})
}

// listRuns is GET /v1/runs: all of the organization, of deleted automations too; status may be given several times.
func (s *server) listRuns(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in := c.query(r, runQuery...)
	f := models.RunFilter{OrgID: who.OrgID, AutomationID: opt[uuid.UUID](in, "automation_id")}
	for _, status := range get[[]string](in, "status") {
		f.Statuses = append(f.Statuses, models.RunStatus(status))
	}
	if err := c.err(); err != nil {
		return err
	}
	f.Limit, f.Offset = page(in)
	runs, total, err := s.Store.ListRuns(r.Context(), f)
	if err != nil {
		return err
	}
	return ok(w, runList{s.showRuns(runs), total})
}

// run reads the run in the path of one of our own routes, where an id that is none is as unknown as any.
func (s *server) run(r *http.Request, who Caller) (*models.Run, error) {
	id, err := uuid.Parse(idOf(r))
	if err != nil {
		return nil, notFound(noRun)
	}
	run, err := s.Store.Run(r.Context(), who.OrgID, id)
	return run, as404(err, noRun)
}

// getRun is GET /v1/runs/{id}.
func (s *server) getRun(w http.ResponseWriter, r *http.Request, who Caller) error {
	run, err := s.run(r, who)
	if err != nil {
		return err
	}
	return one(w, r, s.showRun(run))
}

// getLogs is GET /v1/runs/{id}/logs: the stored output, after the box is gone too.
func (s *server) getLogs(w http.ResponseWriter, r *http.Request, who Caller) error {
	run, err := s.run(r, who)
	if err != nil {
		return err
	}
	if run.OutputKey == nil {
		return notFound("No output of this run is stored")
	}
	output, err := s.Blob.Open(r.Context(), *run.OutputKey)
	if errors.Is(err, fs.ErrNotExist) {
		return notFound("The output of this run is no longer stored")
	} else if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	_, err = io.Copy(w, output)
	return err
}
