package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"automation/models"
	"automation/sandbox"
)

// Every HTTP status that this package answers is written in this file.

// The statuses of success, for the table of routes.
const (
	statusOK        = http.StatusOK
	statusCreated   = http.StatusCreated
	statusAccepted  = http.StatusAccepted
	statusNoContent = http.StatusNoContent
	statusSwitching = http.StatusSwitchingProtocols
)

// problem is an answer that is not a success. The contract's routes show it as {"detail": …}, ours as
// {"error": {code, message, details, request_id}, "detail": message}.
type problem struct {
	status     int
	code       string
	message    string
	issues     []issue // what is wrong with the request, all of it
	details    map[string]any
	retryAfter time.Duration
	fault      bool // of ours: it is logged, and what was asked for may have been done
}

// Error returns the message.
func (p *problem) Error() string { return p.message }

func unauthorized(message string) error {
	return &problem{status: http.StatusUnauthorized, code: "unauthorized", message: message}
}

func forbidden(message string) error {
	return &problem{status: http.StatusForbidden, code: "forbidden", message: message}
}

func notFound(message string) error {
	return &problem{status: http.StatusNotFound, code: "not_found", message: message}
}

func badRequest(message string) error {
	return &problem{status: http.StatusBadRequest, code: "invalid_request", message: message}
}

func conflict(code, message string) *problem {
	return &problem{status: http.StatusConflict, code: code, message: message}
}

func unsupportedMedia(message string) error {
	return &problem{status: http.StatusUnsupportedMediaType, code: "unsupported_media_type", message: message}
}

func tooLarge(message string) error {
	return &problem{status: http.StatusRequestEntityTooLarge, code: "too_large", message: message}
}

// tooSlow is for a body that did not arrive in time.
func tooSlow(within time.Duration) error {
	return &problem{
		status: http.StatusRequestTimeout, code: "body_too_slow", message: fmt.Sprintf("The body did not arrive within %v", within),
	}
}

// unprocessable is the contract's 422 with a text.
func unprocessable(message string) error {
	return &problem{status: http.StatusUnprocessableEntity, code: "invalid_request", message: message}
}

// invalid is the contract's 422 with every issue found; our own routes make a 400 of it.
func invalid(issues []issue) error {
	return &problem{
		status: http.StatusUnprocessableEntity, code: "invalid_request", message: summary(issues), issues: issues,
	}
}

// changedMeanwhile says that an object is not the one that If-Match names; tag names the present one.
func changedMeanwhile(tag string) error {
	p := &problem{status: http.StatusPreconditionFailed, code: "changed", message: "The object has changed: read it again"}
	p.details = map[string]any{"etag": tag}
	return p
}

// badGateway says that the box answered something that makes no sense, or broke off.
func badGateway(message string) error {
	return &problem{status: http.StatusBadGateway, code: "sandbox_agent_failed", message: message}
}

// The answers of the routes of customers (statements S2).

func sandboxUnknown() error {
	return &problem{status: http.StatusNotFound, code: "sandbox_not_found", message: "The tenant has no such sandbox"}
}

func agentNotStarted() error {
	return &problem{status: http.StatusNotFound, code: "sandbox_agent_not_started", message: "No server runs in this sandbox"}
}

func sessionChanged() error {
	return conflict("sandbox_agent_session_changed", "This is not the present session: read the status again")
}

// agentUnavailable says that a server cannot be started now; after 0 means that waiting does not help.
func agentUnavailable(code, message string, after time.Duration) error {
	return unavailable(code, message, after)
}

// sandboxesUnavailable says that the service itself cannot do it now.
func sandboxesUnavailable(message string) error {
	return unavailable("sandboxes_unavailable", message, 5*time.Second)
}

// faultOf says so of a fault of ours; err is for the log.
func faultOf(err error) error {
	p := unavailable("sandboxes_unavailable", "The service cannot do this now: try again", retryFault)
	p.fault = true
	return fmt.Errorf("%w: %w", p, err)
}

// isRefusal reports whether a credential is known, and may not do this, or is shown in a way that makes no sense.
func (p *problem) isRefusal() bool {
	return p != nil && (p.status == http.StatusForbidden || p.status == http.StatusBadRequest)
}

// sandboxArchived says that a box is gone for good, as everybody wanted.
func sandboxArchived(message string) error {
	return &problem{status: http.StatusGone, code: "sandbox_archived", message: message}
}

// unavailable says that retrying after a while helps.
func unavailable(code, message string, after time.Duration) *problem {
	return &problem{status: http.StatusServiceUnavailable, code: code, message: message, retryAfter: after}
}

// wrongProviderID answers a provider's id where a workspace id belongs, naming the right one (S0-118, S0-154).
func wrongProviderID(workspaceID string) error {
	p := &problem{
		status: http.StatusNotFound, code: "provider_id",
		message: "Sandbox not found; this is a provider's id, the sandbox is known as " + workspaceID,
	}
	p.details = map[string]any{"workspace_id": workspaceID}
	return p
}

// sentinels are the errors of the packages below that a caller can do something about.
var sentinels = []struct {
	err  error
	then problem
}{
	{models.ErrNotFound, problem{status: http.StatusNotFound, code: "not_found", message: "Not Found"}},
	{models.ErrDeletionOrdered, problem{status: http.StatusConflict, code: "deletion_ordered", message: "The deletion of this sandbox is decided, which is final"}},
	{models.ErrRunActive, problem{status: http.StatusConflict, code: "run_active", message: "The run of this sandbox is still running: cancel the run first"}},
	{models.ErrNoStamp, problem{status: http.StatusConflict, code: "no_due_date", message: "This sandbox has no due date that could be extended"}},
	{models.ErrPlanExpired, problem{status: http.StatusConflict, code: "plan_expired", message: "The plan has expired: make a new one"}},
	{models.ErrConflict, problem{status: http.StatusConflict, code: "conflict", message: "The object has changed meanwhile"}},
	{models.ErrWorkspaceFixed, problem{status: http.StatusConflict, code: "workspace_fixed", message: "The conversation has another workspace, which never changes"}},
	{models.ErrWorkspaceTaken, problem{status: http.StatusConflict, code: "workspace_taken", message: "Another conversation works on this workspace"}},
	{sandbox.ErrGone, problem{status: http.StatusGone, code: "sandbox_gone", message: "The provider no longer has this sandbox"}},
	{sandbox.ErrUnreachable, problem{status: http.StatusServiceUnavailable, code: "sandbox_agent_unavailable", message: "The sandbox does not answer", retryAfter: retryFault}},
	{errors.ErrUnsupported, problem{status: http.StatusConflict, code: "unsupported", message: "The sandbox cannot do that"}},
}

// asProblem finds the answer for an error; nil means that nobody expected it.
func asProblem(err error) *problem {
	if p := new(problem); errors.As(err, &p) {
		return p
	}
	if big := new(http.MaxBytesError); errors.As(err, &big) {
		return &problem{
			status: http.StatusRequestEntityTooLarge, code: "too_large",
			message: "The body is larger than " + strconv.FormatInt(big.Limit, 10) + " bytes",
		}
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			then := s.then
			return &then
		}
	}
	switch fault := models.Fault(err); {
	case errors.Is(fault, models.ErrFull):
		return &problem{status: http.StatusInsufficientStorage, code: "disk_full", message: "The service has no room left on its disk", fault: true}
	case errors.Is(fault, models.ErrUnavailable):
		p := unavailable("database_unavailable", "The database does not answer: try again", retryFault)
		p.fault = true
		return p
	}
	return nil
}

// retryFault is when to try again after a fault that passes by itself.
const retryFault = 5 * time.Second

// fail writes the answer for err in the shape of the route. An error that nobody expected, or that is a fault
// of ours, is logged here, once; the former is the contract's plain 500.
func (s *server) fail(w http.ResponseWriter, r *http.Request, own bool, err error) {
	p := asProblem(err)
	if rec, ok := w.(*recorder); ok && rec.wrote() {
		s.log.WarnContext(r.Context(), "answer broken off", "request_id", requestID(r), "error", err)
		panic(http.ErrAbortHandler) // record cuts the connection, so that nobody takes the answer for whole
	}
	if p == nil || p.fault {
		if !errors.Is(err, context.Canceled) || r.Context().Err() == nil {
			s.log.ErrorContext(r.Context(), "request failed", "request_id", requestID(r), "error", err)
		}
	}
	if p == nil {
		internalError(w)
		return
	}
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((p.retryAfter+time.Second-1)/time.Second)))
	}
	if own {
		p.writeOwn(w, requestID(r))
		return
	}
	if p.issues != nil {
		writeJSON(w, p.status, map[string]any{"detail": p.issues})
		return
	}
	writeJSON(w, p.status, map[string]any{"detail": p.message})
}

// writeOwn writes the shape of our own routes, where a malformed request is 400 and names the fields.
func (p *problem) writeOwn(w http.ResponseWriter, id string) {
	status, details := p.status, map[string]any{}
	maps.Copy(details, p.details)
	if p.issues != nil {
		status = http.StatusBadRequest
		details["errors"] = p.issues
	}
	writeJSON(w, status, map[string]any{
		"error":  map[string]any{"code": p.code, "message": p.message, "details": details, "request_id": id},
		"detail": p.message,
	})
}

// internalError is the contract's answer to what should not have happened.
func internalError(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = w.Write([]byte("Internal Server Error"))
}

func noRoute(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusNotFound, map[string]any{"detail": "Not Found"})
}

func noMethod(w http.ResponseWriter, r *http.Request) {
	if allowed := methodsOf(r); len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
	}
	writeJSON(w, http.StatusMethodNotAllowed, map[string]any{"detail": "Method Not Allowed"})
}

// methodsOf lists what the path of a request can be asked by.
func methodsOf(r *http.Request) []string {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var allowed []string
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		if chi.RouteContext(r.Context()).Routes.Match(chi.NewRouteContext(), method, path) {
			allowed = append(allowed, method)
		}
	}
	return allowed
}

func ok(w http.ResponseWriter, v any) error { writeJSON(w, http.StatusOK, v); return nil }

func created(w http.ResponseWriter, v any) error { writeJSON(w, http.StatusCreated, v); return nil }

func accepted(w http.ResponseWriter, v any) error { writeJSON(w, http.StatusAccepted, v); return nil }

// noContent carries the JSON content type as the contract's does.
func noContent(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// switching is the head of the answer to an upgrade that is written by hand, on the connection itself.
func switching(protocol string) string {
	return "HTTP/1.1 101 Switching Protocols\r\nUpgrade: " + protocol + "\r\nConnection: Upgrade\r\n\r\n"
}

// notModified says that the caller has read what there is.
func notModified(w http.ResponseWriter) { w.WriteHeader(http.StatusNotModified) }

// answerAs gives the answer that a request was given, whose content type is written already.
func answerAs(w http.ResponseWriter, r *models.Request) error {
	w.Header().Set("Content-Length", strconv.Itoa(len(r.Answer)))
	w.WriteHeader(r.Status)
	_, _ = w.Write(r.Answer)
	return nil
}

// found redirects to where the caller gets the thing.
func found(w http.ResponseWriter, to string) error {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusFound)
	return nil
}

// answerPreflight answers a browser that asks whether it may send a request.
func answerPreflight(w http.ResponseWriter, fine bool) {
	status, text := http.StatusOK, "OK"
	if !fine {
		status, text = http.StatusBadRequest, "Disallowed CORS origin"
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}

func notReady(w http.ResponseWriter, v any) { writeJSON(w, http.StatusServiceUnavailable, v) }

// impliedStatus is that of an answer which is written without one; below it an answer has not begun.
const impliedStatus = http.StatusOK

// isUnauthorized reports whether a box did not know the key.
func isUnauthorized(status int) bool { return status == http.StatusUnauthorized }

func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		internalError(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// Refuse is for a Verifier: an answer with the contract's status and detail.
func Refuse(status int, detail string) error {
	return &problem{status: status, code: "login_refused", message: detail}
}
