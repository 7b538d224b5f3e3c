package router

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"automation/models"
	"automation/models/customer"
	"automation/session"
)

// The public routes by which a customer starts, watches and stops the server in a sandbox (docs/API.md, "Agents of customers";
// statements S2). They lie at the root, have credentials of their own, and check in one order: form, credential, tenant and
// permission, sandbox, then whether it can be done now (S2-010).

// Agents are the servers that customers start; *session.Sessions is one.
type Agents interface {
	// Start returns the open session in a box, or a new one. session.ErrNoAgent, session.ErrNotRunning, customer.ErrStopping.
	Start(ctx context.Context, box *models.Sandbox, who string) (*customer.Session, error)
	// Stop ends the session in a box and returns the newest; models.ErrNotFound where there never was one.
	Stop(ctx context.Context, box *models.Sandbox) (*customer.Session, error)
	// Read gives the lines of a session to write, until its end or that of what is asked for.
	Read(ctx context.Context, what session.Reading, write func(lines []byte) error) error
}

// Customers is what the routes of customers work with; without a Store they are not there.
type Customers struct {
	Store  *customer.Store
	Agents Agents
	// Creator returns what a user may do at the moment; nil: nothing is known of any but the local one.
	Creator func(ctx context.Context, orgID, userID uuid.UUID) (permissions []string, err error)
	// RelayIdle is how long a relay may be silent in both directions; 0: 15 minutes.
	RelayIdle time.Duration
}

// visit is one request of a customer, let in.
type visit struct {
	org  uuid.UUID
	id   uuid.UUID // of the key or the user
	name string    // who it is, in events
	box  *models.Sandbox
	// mayWrite says whether the caller may start and stop, as POST and DELETE demand.
	mayWrite bool
}

// pass says what a customer's route demands.
type pass struct {
	write bool                        // sandboxes:write; else sandboxes:read or write
	form  func(r *http.Request) error // checks the parameters
}

// visitor handles a request that was let in.
type visitor func(w http.ResponseWriter, r *http.Request, v visit) error

// letIn lets those in who may, and says in the words of customers what keeps the service itself from answering (S2-023, S2-065).
func (s *server) letIn(p pass, do visitor) handler {
	return func(w http.ResponseWriter, r *http.Request, _ Caller) error {
		v, err := s.admit(w, r, p)
		if err == nil {
			err = do(w, r, v)
		}
		if p := asProblem(err); p != nil && p.fault {
			return faultOf(err)
		}
		return err
	}
}

// admit checks a request of a customer in the order of S2-010.
func (s *server) admit(w http.ResponseWriter, r *http.Request, p pass) (visit, error) {
	org, sandboxID, err := named(r)
	if err == nil && p.form != nil {
		err = p.form(r)
	}
	if err != nil {
		return visit{}, err
	}
	who, err := s.customer(r)
	if errors.Is(err, errNoCredential) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return visit{}, unauthorized("A valid customer access token or workspace API key is required as a bearer")
	}
	if err != nil {
		return visit{}, err
	}
	if who.org != org {
		return visit{}, forbidden("The credential is not of this tenant")
	}
	v := visit{org: org, id: who.id, name: who.name}
	v.box, err = s.Store.Sandbox(r.Context(), org, sandboxID)
	unknown := errors.Is(err, models.ErrNotFound)
	if err != nil && !unknown {
		return visit{}, err
	}
	owner := uuid.Nil
	if !unknown {
		owner = v.box.UserID
	}
	mayRead := who.may(customer.ReadSandboxes, owner)
	v.mayWrite = who.may(customer.WriteSandboxes, owner)
	switch {
	case p.write && !v.mayWrite:
		return visit{}, forbidden("The credential lacks the permission " + customer.WriteSandboxes)
	case !mayRead && !v.mayWrite:
		return visit{}, forbidden("The credential lacks the permission " + customer.ReadSandboxes)
	case unknown:
		return visit{}, sandboxUnknown()
	}
	return v, nil
}

// named reads the tenant and the sandbox in the path.
func named(r *http.Request) (tenant, sandbox uuid.UUID, err error) {
	for name, id := range map[string]*uuid.UUID{"tenantId": &tenant, "sandboxId": &sandbox} {
		text := chi.URLParam(r, name)
		if *id, err = uuid.Parse(text); err != nil || len(text) != len(id.String()) {
			return uuid.Nil, uuid.Nil, badRequest(name + " must be a UUID")
		}
	}
	return tenant, sandbox, nil
}

// client is who shows a credential on a customer's route.
type client struct {
	org  uuid.UUID
	id   uuid.UUID
	name string
	may  func(permission string, owner uuid.UUID) bool // owner is that of the sandbox, or Nil
}

var errNoCredential = errors.New("no valid credential")

// customer finds out whose bearer a request shows: a key made by `automation keys`, or the access token by which a user of the
// service logs in (S2-002).
func (s *server) customer(r *http.Request) (client, error) {
	kind, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if secret = strings.TrimSpace(secret); !strings.EqualFold(kind, "Bearer") || secret == "" {
		return client{}, errNoCredential
	}
	if customer.IsTicket(secret) { // which no bearer stands for (S2-007), and nobody else is shown it
		return client{}, errNoCredential
	}
	if customer.IsKey(secret) {
		return s.keyClient(r.Context(), secret)
	}
	who, err := s.login(r, false)
	p := asProblem(err)
	switch {
	case p == nil && err != nil, p.isRefusal():
		return client{}, err
	case p != nil && isUnauthorized(p.status):
		return client{}, errNoCredential
	case p != nil:
		return client{}, sandboxesUnavailable("The credential cannot be checked now")
	}
	return client{org: who.OrgID, id: who.UserID, name: who.name(), may: who.grants}, nil
}

// grants reports whether a user of the service holds what a customer's route demands: who may see automations may read, and
// who may change a sandbox may write.
func (c Caller) grants(permission string, owner uuid.UUID) bool {
	if permission == customer.ReadSandboxes {
		return c.may(viewAutomations)
	}
	return c.may(viewAutomations) && c.canManage(owner)
}

// keyClient is who shows a key. One with everything may do what its creator may do at this moment (S2-006).
func (s *server) keyClient(ctx context.Context, secret string) (client, error) {
	key, err := s.Customers.Store.KeyOf(ctx, secret)
	if errors.Is(err, models.ErrNotFound) {
		return client{}, errNoCredential
	}
	if err != nil {
		return client{}, err
	}
	held := key.Grants()
	found := client{org: key.OrgID, id: key.ID, name: "key:" + key.ID.String(), may: func(permission string, _ uuid.UUID) bool {
		return slices.Contains(held, permission)
	}}
	if !slices.Contains(held, customer.Everything) {
		return found, nil
	}
	creator := Caller{UserID: key.CreatorID, OrgID: key.CreatorOrg}
	if creator.Permissions, err = s.creatorMay(ctx, key); err != nil {
		s.log.WarnContext(ctx, "the creator of a key cannot be looked up", "key_id", key.ID, "error", err)
		return client{}, sandboxesUnavailable("What the creator of the key may do cannot be looked up now")
	}
	found.may = func(permission string, owner uuid.UUID) bool {
		return slices.Contains(held, permission) || creator.grants(permission, owner)
	}
	return found, nil
}

func (s *server) creatorMay(ctx context.Context, key *customer.Key) ([]string, error) {
	switch {
	case key.CreatorID == localUserID && s.LocalKey.Reveal() != "":
		return localPermissions, nil
	case s.Customers.Creator == nil:
		return nil, nil
	}
	return s.Customers.Creator(ctx, key.CreatorOrg, key.CreatorID)
}

// agentObject is the SandboxAgent of the contract (S2-038…045).
type agentObject struct {
	Enabled               bool         `json:"enabled"`
	Status                agentStatus  `json:"status"`
	SessionID             *sessionName `json:"session_id"`
	ExitCode              *int         `json:"exit_code"`
	Reason                agentReason  `json:"reason"`
	TasksAvailable        bool         `json:"tasks_available"`
	TaskUnavailableReason taskRefusal  `json:"task_unavailable_reason"`
	Readiness             readiness    `json:"readiness"` // always unverified: that the server is ready is for the customer to find out (S2-029)
	UpdatedAt             *stamp       `json:"updated_at"`
}

// showAgent describes the present session of a sandbox; nil where there never was one.
func (s *server) showAgent(ctx context.Context, v visit, present *customer.Session) (agentObject, error) {
	on, err := s.Customers.Store.AgentsOn(ctx, v.org, v.box.ID)
	if err != nil {
		return agentObject{}, err
	}
	o := agentObject{Enabled: on, Status: agentIdle, TasksAvailable: v.mayWrite, Readiness: unverified}
	if !v.mayWrite {
		o.TaskUnavailableReason = permissionRequired
	}
	if present == nil {
		return o, nil
	}
	id := sessionName(present.ID)
	o.Status, o.Reason, o.SessionID, o.ExitCode = agentStatus(present.State), agentReason(present.Reason), &id, present.ExitCode
	o.UpdatedAt = optStamp(&present.UpdatedAt)
	switch {
	case !present.Closed() && present.StopAskedAt != nil:
		o.Status, o.Reason = agentStopped, customer.ReasonStopped
	case present.State == customer.Queued:
		o.Status, o.Reason = agentActive, reasonQueued
	}
	return o, nil
}

// present returns the present session of a sandbox, or nil.
func (s *server) present(ctx context.Context, v visit) (*customer.Session, error) {
	found, err := s.Customers.Store.NewestSession(ctx, v.box.ID)
	if errors.Is(err, models.ErrNotFound) {
		return nil, nil
	}
	return found, err
}

// getAgent is GET …/agent: what is stored, so that looking is no activity and wakes nothing (S2-017).
func (s *server) getAgent(w http.ResponseWriter, r *http.Request, v visit) error {
	found, err := s.present(r.Context(), v)
	if err != nil {
		return err
	}
	o, err := s.showAgent(r.Context(), v, found)
	if err != nil {
		return err
	}
	return ok(w, o)
}

// startAgent is POST …/agent (S2-018…029).
func (s *server) startAgent(w http.ResponseWriter, r *http.Request, v visit) error {
	if err := s.emptyObject(w, r); err != nil {
		return err
	}
	w.Header().Set("Location", r.URL.Path) // here, for an answer that is repeated is kept without its headers
	err := s.once(func(w http.ResponseWriter, r *http.Request, _ Caller) error { return s.start(w, r, v) })(w, r, Caller{OrgID: v.org, UserID: v.id})
	if err != nil {
		w.Header().Del("Location")
	}
	return err
}

// start starts the agent of a request that is not a repeated one.
func (s *server) start(w http.ResponseWriter, r *http.Request, v visit) error {
	on, err := s.Customers.Store.AgentsOn(r.Context(), v.org, v.box.ID)
	if err != nil {
		return err
	}
	if !on {
		return agentUnavailable("sandbox_agent_unavailable", "Agents are not enabled for this sandbox", 0)
	}
	started, err := s.Customers.Agents.Start(r.Context(), v.box, v.name)
	switch {
	case errors.Is(err, session.ErrNotRunning) && v.box.Desired == models.WantDeleted:
		return agentUnavailable("sandbox_exec_unavailable", "The sandbox is deleted", 0)
	case errors.Is(err, session.ErrNoAgent):
		return agentUnavailable("sandbox_agent_unavailable", "The image of this sandbox has no OpenHands server", 0)
	case errors.Is(err, session.ErrNotRunning):
		return agentUnavailable("sandbox_exec_unavailable", "The sandbox is not running", 5*time.Second)
	case errors.Is(err, customer.ErrStopping):
		return agentUnavailable("sandbox_exec_unavailable", "The server is still stopping", 5*time.Second)
	case err != nil:
		return err
	}
	o, err := s.showAgent(r.Context(), v, started)
	if err != nil {
		return err
	}
	return accepted(w, o)
}

// stopAgent is DELETE …/agent (S2-030…037).
func (s *server) stopAgent(w http.ResponseWriter, r *http.Request, v visit) error {
	if raw, err := s.readBody(w, r, largestEmptyBody); err != nil || len(raw) > 0 {
		return badRequest("The body must be empty")
	}
	stopped, err := s.Customers.Agents.Stop(r.Context(), v.box)
	if errors.Is(err, models.ErrNotFound) {
		stopped, err = nil, nil
	}
	if err != nil {
		return err
	}
	o, err := s.showAgent(r.Context(), v, stopped)
	if err != nil {
		return err
	}
	if stopped != nil {
		o.Status = agentStopped // one that failed has stopped, too
	}
	return ok(w, o)
}
