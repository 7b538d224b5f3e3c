package models

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// Desired is what a box is ordered to be.
type Desired string

// The desired states. Deleted is final.
const (
	WantRunning   Desired = "running"
	WantSuspended Desired = "suspended"
	WantDeleted   Desired = "deleted"
)

// Observed is what the provider last showed of a box.
type Observed string

// The observed states.
const (
	SeenProvisioning Observed = "provisioning"
	SeenRunning      Observed = "running"
	SeenSuspended    Observed = "suspended"
	SeenDeleting     Observed = "deleting"
	SeenDeleted      Observed = "deleted"
	SeenMissing      Observed = "missing"
	SeenFailed       Observed = "failed"
)

// IdentityKind says what a provider named.
type IdentityKind string

// The kinds of identities.
const (
	IdentityBox      IdentityKind = "box"
	IdentitySnapshot IdentityKind = "snapshot"
	IdentityConfig   IdentityKind = "config"
)

// Sandbox is a row of sandboxes: a box, written before a provider is asked for anything. ID is the workspace id, which never
// changes; what providers name is in Identities.
type Sandbox struct {
	bun.BaseModel `bun:"table:sandboxes,alias:s"`

	ID           uuid.UUID  `bun:"id,pk"`
	OrgID        uuid.UUID  `bun:"org_id"`
	UserID       uuid.UUID  `bun:"user_id"`
	AutomationID *uuid.UUID `bun:"automation_id"`
	RunID        *uuid.UUID `bun:"run_id"`
	Backend      string     `bun:"backend"`
	Location     string     `bun:"location"`   // where it can be reached; "" for remote providers
	CreatedBy    string     `bun:"created_by"` // dispatch, orphan (S0-016)

	Desired     Desired   `bun:"desired"`
	Observed    Observed  `bun:"observed"`
	Generation  int64     `bun:"generation"` // +1 with every order
	OrderedAt   time.Time `bun:"ordered_at"`
	OrderedBy   string    `bun:"ordered_by"`
	OrderReason string    `bun:"order_reason"`

	NextStepAt *time.Time `bun:"next_step_at"` // NULL: at rest
	Attempts   int        `bun:"attempts"`     // failed tries of the present step, for the backoff
	LastError  *string    `bun:"last_error"`
	LeaseToken *uuid.UUID `bun:"lease_token"`
	LeaseUntil *time.Time `bun:"lease_until"`

	// Success markers: done when equal to AwakeEpoch, which rises at each seen wake.
	AwakeEpoch     int64 `bun:"awake_epoch"`
	OutputEpoch    int64 `bun:"output_epoch"`
	ReclaimedEpoch int64 `bun:"reclaimed_epoch"`
	ExportedEpoch  int64 `bun:"exported_epoch"`

	Tried         []string   `bun:"tried,type:jsonb"` // steps that failed since the last order or wake: not repeated
	PrepareUntil  *time.Time `bun:"prepare_until"`    // end of the budget of the steps before suspend or delete
	ObservedAt    *time.Time `bun:"observed_at"`
	AnsweredAt    *time.Time `bun:"answered_at"` // since when the provider answers without a break; NULL: it does not
	Searches      int        `bun:"searches"`    // look-ups of a create whose answer was lost
	ExportTries   int        `bun:"export_tries"`
	ExportTriedAt *time.Time `bun:"export_tried_at"`

	CreateSentAt  *time.Time `bun:"create_sent_at"`  // just before Create
	CreateEndedAt *time.Time `bun:"create_ended_at"` // when Create returned, with or without an answer

	URL          string     `bun:"url"`         // of the agent server
	SessionKey   string     `bun:"session_key"` // sealed in the row, open in the struct; "" when it cannot be opened
	LastAccessAt *time.Time `bun:"last_access_at"`
	SuspendedAt  *time.Time `bun:"suspended_at"`
	ExpiresAt    *time.Time `bun:"expires_at"` // the provider's own expiry, as last seen
	DeletedAt    *time.Time `bun:"deleted_at"`
	CreatedAt    time.Time  `bun:"created_at"`

	KeptAt     *time.Time `bun:"kept_at"` // pinned by a person; NULL: not kept
	KeptBy     string     `bun:"kept_by"`
	KeptReason string     `bun:"kept_reason"`

	Note           string          `bun:"note"`            // shown with the box: "backend cannot suspend: deleted"
	NeedsAttention string          `bun:"needs_attention"` // reason code, "" for none
	ReclaimedBytes int64           `bun:"reclaimed_bytes"` // freed by the last reclaim before a suspend
	Storage        json.RawMessage `bun:"storage,nullzero"`
	StorageAt      *time.Time      `bun:"storage_at"`

	// DueAt is sandbox_cleanup_due_at of the box's run where this is the run's newest box; filled by Sandbox and ListSandboxes.
	DueAt *time.Time `bun:"due_at,scanonly"`

	Identities []*Identity `bun:"-"` // all of them, oldest first; filled by claims and readers
}

// Leased reports whether a live lease holds the row at now. NULL or past is not live.
func (b *Sandbox) Leased(now time.Time) bool { return b.LeaseUntil != nil && b.LeaseUntil.After(now) }

// Open returns the identities that are not known to be gone.
func (b *Sandbox) Open() []*Identity {
	var open []*Identity
	for _, i := range b.Identities {
		if i.GoneAt == nil {
			open = append(open, i)
		}
	}
	return open
}

// Identity is a row of sandbox_identities: one thing a provider named for a box. It is a fact: stored unconditionally,
// whatever the generation, lease or run status.
type Identity struct {
	bun.BaseModel `bun:"table:sandbox_identities,alias:i"`

	SandboxID  uuid.UUID    `bun:"sandbox_id,pk"`
	Kind       IdentityKind `bun:"kind,pk"`
	ProviderID string       `bun:"provider_id,pk"`
	URL        string       `bun:"url"`         // agent server; "" when not known yet
	SessionKey string       `bun:"session_key"` // sealed in the row
	SeenAt     time.Time    `bun:"seen_at"`
	GoneAt     *time.Time   `bun:"gone_at"`
}

// Sandboxes: reading.

// SandboxFilter selects boxes of one organization, newest first.
type SandboxFilter struct {
	OrgID          uuid.UUID
	States         []Observed
	Desired        []Desired
	Backend        string
	DueWithin      *time.Duration
	NeedsAttention bool
	Limit          int
	Offset         int
}

// Sandbox returns a box with its identities; orgID uuid.Nil means any organization. ErrNotFound when there is none.
func (s *Store) Sandbox(ctx context.Context, orgID, id uuid.UUID) (*Sandbox, error) {
	panic("unwritten")
}

// SandboxByProviderID returns the workspace id of the organization's box that a provider named so, else ErrNotFound.
func (s *Store) SandboxByProviderID(ctx context.Context, orgID uuid.UUID, providerID string) (uuid.UUID, error) {
	panic("unwritten")
}

// ListSandboxes returns a page with identities, and the total number of matches.
func (s *Store) ListSandboxes(ctx context.Context, f SandboxFilter) ([]*Sandbox, int, error) {
	panic("unwritten")
}

// Sandboxes: changing minds.

// Order changes the desired state of a box: generation + 1, ordered_at, order_reason, next_step_at = now, tried and
// prepare_until cleared, an event; WHERE desired <> 'deleted'. who is a user ("user:<id>") or a duty; why is a short reason.
// An order by a person ("user:" prefix) to suspend or delete a box whose run is RUNNING is ErrRunActive. ErrDeletionOrdered
// when deletion was ordered before (also for a repeated delete), ErrNotFound when there is no such box.
func (s *Store) Order(ctx context.Context, boxID uuid.UUID, to Desired, who, why string) error {
	panic("unwritten")
}

// Extend sets the stamp of the box's run (locks run, then box). ErrNoStamp when it has none, ErrDeletionOrdered.
func (s *Store) Extend(ctx context.Context, boxID uuid.UUID, due time.Time, who string) error {
	panic("unwritten")
}

// Keep pins a box and clears the stamp of its run; ErrDeletionOrdered.
func (s *Store) Keep(ctx context.Context, boxID uuid.UUID, who, reason string) error {
	panic("unwritten")
}

// Unkeep unpins a box and, where its run is terminal and its automation not keep_alive, stamps from now + delay. It returns
// the new due date or nil.
func (s *Store) Unkeep(ctx context.Context, boxID uuid.UUID, delay time.Duration, who string) (*time.Time, error) {
	panic("unwritten")
}

// Touch moves last_access_at forward to at.
func (s *Store) Touch(ctx context.Context, boxID uuid.UUID, at time.Time) error { panic("unwritten") }

// Attach writes or renews the attachment of this process to a box until until; it takes the box FOR SHARE. ErrDeletionOrdered
// where the box is ordered deleted.
func (s *Store) Attach(ctx context.Context, boxID, process uuid.UUID, until time.Time) error {
	panic("unwritten")
}

// Detach removes the attachment of this process.
func (s *Store) Detach(ctx context.Context, boxID, process uuid.UUID) error { panic("unwritten") }

// Sandboxes: the settler's claims and records.

// Place is a backend and a location that a process serves.
type Place struct {
	Backend  string
	Location string
}

// Claim is a leased box with what a step is decided on.
type Claim struct {
	Box        *Sandbox // with identities
	Run        *Run     // nil when the box has none
	Newest     bool     // the box is its run's newest
	KeepAlive  bool     // of the automation
	AttachedAt bool     // a live attachment exists
	Token      uuid.UUID
	Generation int64
	Now        time.Time
}

// ClaimBoxes leases up to n boxes of the place with next_step_at <= now and no live lease, earliest first, each with a new
// token, for lease. prepare_until is stored at the first claim after an order.
func (s *Store) ClaimBoxes(ctx context.Context, p Place, n int, lease, budget time.Duration) ([]Claim, error) {
	panic("unwritten")
}

// NextStepAt returns the earliest time at which ClaimBoxes has work for the place: the later of next_step_at and the end of
// a lease, per row; nil when everything is at rest.
func (s *Store) NextStepAt(ctx context.Context, p Place) (*time.Time, error) { panic("unwritten") }

// Renew prolongs the lease WHERE lease_token = token and returns the row's generation; ErrLeaseLost.
func (s *Store) Renew(ctx context.Context, boxID, token uuid.UUID, lease time.Duration) (generation int64, err error) {
	panic("unwritten")
}

// Reload reads a claimed box anew under the same token (after an identity was recorded, or the generation changed).
func (s *Store) Reload(ctx context.Context, boxID, token uuid.UUID) (Claim, error) {
	panic("unwritten")
}

// Release gives the lease back WHERE lease_token = token and keeps next_step_at.
func (s *Store) Release(ctx context.Context, boxID, token uuid.UUID) error { panic("unwritten") }

// ReleaseAll clears every lease: on SQLite at start, where one process owns the file.
func (s *Store) ReleaseAll(ctx context.Context) error { panic("unwritten") }

// RecordIdentity stores a fact, unconditionally: the identity (URL and key are updated when not empty, gone_at cleared only
// by a later sighting of the same id), the box's present url and key, and, on a provisioning box that has no run_id dispatch
// order, nothing else.
func (s *Store) RecordIdentity(ctx context.Context, id Identity) error { panic("unwritten") }

// MarkGone stores that the provider shows the identity gone; a fact.
func (s *Store) MarkGone(ctx context.Context, boxID uuid.UUID, kind IdentityKind, providerID string) error {
	panic("unwritten")
}

// MarkCreate stores create_sent_at (sent true) or create_ended_at, WHERE the lease is token's. ErrLeaseLost otherwise: do
// not call Create.
func (s *Store) MarkCreate(ctx context.Context, boxID, token uuid.UUID, sent bool) error {
	panic("unwritten")
}

// Step is the record of one step of the settler or of dispatch: an observation (written WHERE lease_token = token, whatever
// the generation) and decisions (written by the same UPDATE, but keeping the old values when the generation has changed).
type Step struct {
	BoxID      uuid.UUID
	Token      uuid.UUID
	Generation int64
	Name       string // step name, for events and tried

	// Observation.
	Observed      *Observed
	Woke          bool       // seen awake after not being awake: awake_epoch + 1, tried cleared
	Answered      *bool      // true: answered_at is set when NULL; false: answered_at = NULL
	ExpiresAt     *time.Time // the provider's expiry
	URL           *string
	SessionKey    *string
	OutputDone    bool // output_epoch = awake_epoch
	ReclaimedDone bool
	ExportedDone  bool
	FreedBytes    int64
	ExportTried   bool // export_tries + 1, export_tried_at = now

	// Decisions.
	Tried          bool       // add Name to tried
	Next           *time.Time // next_step_at; nil: at rest
	Attempts       int
	LastError      *string
	NeedsAttention string
	Searches       int
	Adopt          *Desired // a different state on a row at rest: desired is set to it, event adopted, no new generation
	// ClearStamp clears the run's stamp in the same transaction, provided this is the run's newest box (the first Delete
	// call was made, success or not: S1-033).
	ClearStamp bool

	Release bool    // give the lease back with this record
	Events  []Event // appended in the same transaction
}

// RecordStep writes a Step. changed reports that the generation is no longer Step.Generation (decisions were not written; an
// order is waiting). ErrLeaseLost when the token is not the row's: nothing but facts may be written then.
func (s *Store) RecordStep(ctx context.Context, st Step) (changed bool, err error) {
	panic("unwritten")
}

// Sandboxes: the janitor.

// OrderDue orders deleted, in one bounded transaction, up to limit boxes of runs that are terminal, whose stamp is <= now,
// whose newest box is not ordered deleted, not kept, in one of places, and not attached (an attachment holds for at most
// hold past the stamp, which does not move). It locks run, then box, then checks attachments. It takes no lease. It returns
// the ids ordered.
func (s *Store) OrderDue(ctx context.Context, places []Place, limit int, hold time.Duration) ([]uuid.UUID, error) {
	panic("unwritten")
}

// RepairStamps clears stamps of runs that have no box, and sets an invalid stamp (zero, before completed_at) of a terminal
// run to completed_at + delay (BR-07); bounded by limit. It returns how many rows it changed.
func (s *Store) RepairStamps(ctx context.Context, delay time.Duration, limit int) (int, error) {
	panic("unwritten")
}

// NextDueAt returns the earliest stamp, or nil.
func (s *Store) NextDueAt(ctx context.Context) (*time.Time, error) { panic("unwritten") }

// Sandboxes: the orphan pass.

// Listed is one box that a provider listed under our deployment label.
type Listed struct {
	Kind        IdentityKind
	ProviderID  string
	WorkspaceID uuid.UUID // from the label; uuid.Nil when unreadable
	Observed    Observed
}

// SightOrphan handles one listed box after the list was read. Known identity: nothing (false). Row of that workspace id
// without this identity (a create whose answer was lost): the identity is recorded and the row nudged (true). No row: one is
// inserted, created_by orphan, ordered deleted with next_step_at = now + quarantine, and its identity (true).
func (s *Store) SightOrphan(ctx context.Context, p Place, l Listed, quarantine time.Duration) (bool, error) {
	panic("unwritten")
}

// Known is an identity of a row at rest that a list may fail to show.
type Known struct {
	BoxID      uuid.UUID
	ProviderID string
}

// KnownBoxes returns the open box identities of the place seen before t whose rows are not deleted or missing; those that a
// list taken after t does not show are nudged (NudgeBox), so that the settler inspects them under the lease.
func (s *Store) KnownBoxes(ctx context.Context, p Place, t time.Time) ([]Known, error) {
	panic("unwritten")
}

// NudgeBox sets next_step_at = now where the row is at rest or later.
func (s *Store) NudgeBox(ctx context.Context, boxID uuid.UUID) error { panic("unwritten") }
