// Package router is the HTTP API: the routes of the Python service's contract, with its statuses, bodies and texts, and
// beside them the routes of boxes. One file holds a resource; routes.go is the table of all, which the OpenAPI document is made
// from too; statuses are written in errors.go alone, bodies are checked by the tables of bodies.go. It holds no rule of its own about boxes: a person's wish goes through Store.Order and Store.Finish,
// and no request waits for a provider, but for the proxy into a box.
package router

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"automation/config"
	"automation/models"
	"automation/sandbox"
)

// Blob keeps uploads and the output of runs.
type Blob interface {
	// Put stores r under key and returns its size in bytes; nothing is stored when r fails.
	Put(ctx context.Context, key string, r io.Reader) (int64, error)
	// Open reads what is stored under key; fs.ErrNotExist when there is nothing.
	Open(ctx context.Context, key string) (io.ReadCloser, error)
	// Delete removes key; a missing one is no error.
	Delete(ctx context.Context, key string) error
}

// Access lets requests into boxes; *sandbox.Access is one.
type Access interface {
	// Enter lets a caller into a box that was just read, and returns it once its agent server answers. One that does not run is
	// ordered running in the name of who ("user:<id>"). The access is recorded, and nothing suspends or sweeps the box until
	// leave is called, once. models.ErrDeletionOrdered when its deletion is decided, sandbox.ErrGone, or sandbox.ErrNotReady
	// when it does not answer in time.
	Enter(ctx context.Context, box *models.Sandbox, who string) (inside *models.Sandbox, leave func(), err error)
	// Doubt has the next Enter ask the box, which took no connection.
	Doubt(boxID uuid.UUID)
	// Refused has the next Enter look at the box anew, which did not know its key.
	Refused(boxID uuid.UUID)
	// Release gives up what is still held for the next request of a box that nobody is in: it is to be suspended.
	Release(boxID uuid.UUID)
	// OnClose has f called when whoever is inside must leave, unless it is forgotten before.
	OnClose(f func()) (forget func() bool)
}

// Exports takes the history out of a box that runs; *sandbox.Exporter does.
type Exports interface {
	// Export stores it, and returns nil where the box has no conversation.
	Export(ctx context.Context, b *models.Sandbox, conversation string) (*models.Export, error)
}

// Nudges wake the duties that have work after a request. A nil one is not called.
type Nudges struct {
	Dispatch func() // a run is PENDING
	Schedule func() // a trigger has changed
	Settle   func() // a box was ordered something else
	Janitor  func() // a due date has changed
}

// Backends names providers.
type Backends struct {
	Known      []string // in this build, configured or not
	Configured []string // whose boxes this service works on
	NewRuns    string   // new runs are started on; "" in local mode
}

// Runtimes says where conversations get a box of their own.
type Runtimes struct {
	Place models.Place // of new ones; zero in local mode, which has none
	// Workspace checks a caller's own checkout and returns its real path; nil: boxes have only workspaces of their own.
	Workspace func(path string) (string, error)
}

// Deps are what the routes need.
type Deps struct {
	Store  *models.Store
	Config config.Config
	Blob   Blob
	Access Access
	Nudge  Nudges
	// Runtimes are the boxes of conversations.
	Runtimes Runtimes
	// Exports makes exports by hand.
	Exports Exports
	// Customers start agents in boxes.
	Customers Customers

	// LocalKey logs the local user in (design section 11); empty: nobody. Cloud checks every other credential; nil: there is
	// none. With neither, nothing but the probes answers (S0-156).
	LocalKey config.Secret
	Cloud    Verifier

	// Settings are what decisions about boxes depend on.
	Settings sandbox.Settings
	// Capabilities returns what a backend can do, configured or not.
	Capabilities func(backend string) sandbox.Capabilities

	// Backends are the providers.
	Backends Backends

	// ValidateSchedule says which field of a cron trigger is wrong, in the contract's text and with the reason; "" when none is.
	ValidateSchedule func(schedule, timezone string) (field, text, reason string)
	// NextFire returns the first fire time after after, or false when there is none.
	NextFire func(schedule, timezone string, after time.Time) (time.Time, bool)

	// Ready reports how what the service needs is; with a problem in any of it, it cannot serve now.
	Ready func(context.Context) []Check
	// Metrics answers scrapes on GET /metrics, behind the login; nil: not here.
	Metrics http.Handler
	// Observe is told of every answer: the route template (or one that no route of the table has), method, status, time; nil:
	// nobody.
	Observe func(ctx context.Context, route, method string, status int, took time.Duration)
	// Reclaimed is told of every pass in which a box freed something because a person asked: bytes, time, how it went; nil: nobody.
	Reclaimed func(bytes int64, took time.Duration, err error)
	// Version is that of this program, SDKVersion that of the openhands-sdk that boxes should install.
	Version    string
	SDKVersion string
	Log        *slog.Logger

	// BodyWithin is how long a body may take to arrive; 0: half a minute.
	BodyWithin time.Duration
	// Transport carries requests into boxes; nil: one that keeps few connections for a short time.
	Transport http.RoundTripper
}

type server struct {
	Deps
	bodies bodies
	log    *slog.Logger
	// transport carries requests into boxes.
	transport http.RoundTripper
	// document is the OpenAPI document, docsPage the same for people; undocumented why there is none.
	document, docsPage []byte
	undocumented       error
}

// New returns the handler of every route: the probes at the root and below the base path, the API below the base path.
func New(d Deps) http.Handler {
	s := &server{
		Deps: d, log: d.Log, transport: d.Transport,
		bodies: newBodies(d.Config.Dispatch.MaxRun, d.ValidateSchedule),
	}
	if s.transport == nil {
		s.transport = newTransport()
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	table, public := s.routes(), s.customerRoutes()
	s.document, s.undocumented = document(slices.Concat(table, public), d.Config.HTTP.BasePath, d.Version)
	if s.undocumented == nil {
		s.docsPage, s.undocumented = docsOf(slices.Concat(table, public), d.Config.HTTP.BasePath, d.Version)
	}
	root := chi.NewRouter()
	root.Use(s.record, s.onlyLoopback, s.cors)
	root.NotFound(noRoute)
	root.MethodNotAllowed(noMethod)
	atRoot := func(line route) bool {
		return line.access == open || slices.Contains([]string{"/openapi.json", "/docs", "/metrics"}, line.path)
	}
	s.mount(root, slices.DeleteFunc(slices.Clone(table), func(line route) bool { return !atRoot(line) }))
	s.mount(root, public)
	if base := strings.TrimRight(d.Config.HTTP.BasePath, "/"); base != "" {
		root.Route(base, func(r chi.Router) { s.mount(r, table) })
	}
	return root
}

// decide is what becomes of a box when its run ends: pure, for Store.Finish calls it inside its transaction.
func (s *server) decide(e models.Ending) models.Decision {
	var can sandbox.Capabilities
	if e.Box != nil {
		can = s.Capabilities(e.Box.Backend)
	}
	return sandbox.Disposition(e, s.Settings, can)
}

func nudge(f func()) {
	if f != nil {
		f()
	}
}
