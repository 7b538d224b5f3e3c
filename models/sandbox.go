package models

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"
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

// Who made a row of sandboxes.
const (
	CreatedByDispatch = "dispatch"
	CreatedByOrphan   = "orphan" // the provider listed the box under our label, and no row owned it
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
	CreatedBy    string     `bun:"created_by"` // CreatedByDispatch, CreatedByOrphan (S0-016)

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
	HeldBecause    string          `bun:"held_because"`  // why it was left awake although nobody uses it, "" for no reason
	IdleCheckAt    *time.Time      `bun:"idle_check_at"` // when the idle duty looks at it next; NULL: by its last access alone

	// DueAt is sandbox_cleanup_due_at of the box's run where this is the run's newest box; filled by Sandbox and ListSandboxes.
	DueAt *time.Time `bun:"due_at,scanonly"`
	// RunCompletedAt is completed_at of that run, which the delay counts from; filled where DueAt is.
	RunCompletedAt *time.Time `bun:"run_completed_at,scanonly"`

	Identities []*Identity `bun:"-"` // all of them, oldest first; filled by claims and readers
	Export     *Export     `bun:"-"` // the newest that is stored, nil: none; filled by Sandbox and ListSandboxes
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

// Reason codes of NeedsAttention that a reader finds by itself, or treats by a rule of its own; the settler stores the others.
const (
	AttentionUnserved    = "unserved"        // nobody has worked on the box for unservedAfter, though it has work
	AttentionKept        = "kept"            // pinned for longer than keptAfter
	AttentionKeepAlive   = "keep_alive"      // of a keep_alive automation, older than keptAfter
	AttentionIdle        = "idle_unreadable" // nobody uses it, but nothing says whether something runs in it: left awake
	AttentionHistoryLost = "history_lost"    // deleted without a current export; shown for lostShown after the box is gone
)

// After how long a box is shown as needing attention (design sections 4 and 9).
const (
	unservedAfter = time.Hour
	keptAfter     = 7 * 24 * time.Hour
	lostShown     = 7 * 24 * time.Hour
)

// attention is the reason code with which a box needs a person.
const attention = `CASE WHEN s.needs_attention = 'history_lost' AND s.deleted_at <= ?3 THEN ''
	WHEN s.needs_attention <> '' THEN s.needs_attention
	WHEN s.observed = 'deleted' THEN ''
	WHEN s.next_step_at <= ?0 AND (s.lease_until IS NULL OR s.lease_until <= ?1) THEN 'unserved'
	WHEN s.desired = 'deleted' THEN ''
	WHEN s.kept_at <= ?2 THEN 'kept'
	WHEN s.created_at <= ?2 AND EXISTS (SELECT 1 FROM automations AS a WHERE a.id = s.automation_id AND a.keep_alive)
	THEN 'keep_alive' ELSE '' END`

func attentionAt(now time.Time) schema.QueryAppender {
	return bun.SafeQuery(attention, now.Add(-unservedAfter), now, now.Add(-keptAfter), now.Add(-lostShown))
}

// selectBoxes selects whole boxes with what readers compute: the reason for attention and the due date. A stamp that is
// invalid (BR-07) is never shown: the janitor repairs it.
func selectBoxes(db bun.IDB, boxes any, now time.Time) *bun.SelectQuery {
	return db.NewSelect().Model(boxes).
		ExcludeColumn("needs_attention").
		ColumnExpr("(?) AS needs_attention", attentionAt(now)).
		ColumnExpr("r.sandbox_cleanup_due_at AS due_at").
		ColumnExpr("r.completed_at AS run_completed_at").
		Join("LEFT JOIN automation_runs AS r").
		JoinOn("r.id = s.run_id AND r.box_id = s.id").
		JoinOn("r.sandbox_cleanup_due_at >= r.completed_at")
}

// Sandbox returns a box with its identities; orgID uuid.Nil means any organization. ErrNotFound when there is none.
func (s *Store) Sandbox(ctx context.Context, orgID, id uuid.UUID) (*Sandbox, error) {
	box := new(Sandbox)
	q := selectBoxes(s.db, box, s.Now()).Where("s.id = ?", id)
	if orgID != uuid.Nil {
		q = q.Where("s.org_id = ?", orgID)
	}
	if err := q.Scan(ctx); err != nil {
		return nil, notFound(err, "read box %s", id)
	}
	return box, s.completeShown(ctx, []*Sandbox{box})
}

// SandboxByProviderID returns the workspace id of the organization's box that a provider named so, else ErrNotFound.
func (s *Store) SandboxByProviderID(ctx context.Context, orgID uuid.UUID, providerID string) (uuid.UUID, error) {
	var id uuid.UUID
	err := s.db.NewSelect().Model((*Identity)(nil)).
		Column("i.sandbox_id").
		Join("JOIN sandboxes AS s ON s.id = i.sandbox_id").
		Where("i.provider_id = ?", providerID).
		Where("s.org_id = ?", orgID).
		OrderExpr("i.seen_at DESC").
		Limit(1).
		Scan(ctx, &id)
	if err != nil {
		return uuid.Nil, notFound(err, "look for the box that its provider calls %q", providerID)
	}
	return id, nil
}

// ListSandboxes returns a page with identities, and the total number of matches.
func (s *Store) ListSandboxes(ctx context.Context, f SandboxFilter) ([]*Sandbox, int, error) {
	var boxes []*Sandbox
	now := s.Now()
	q := selectBoxes(s.db, &boxes, now).Where("s.org_id = ?", f.OrgID)
	if len(f.States) > 0 {
		q = q.Where("s.observed IN (?)", bun.List(f.States))
	}
	if len(f.Desired) > 0 {
		q = q.Where("s.desired IN (?)", bun.List(f.Desired))
	}
	if f.Backend != "" {
		q = q.Where("s.backend = ?", f.Backend)
	}
	if f.DueWithin != nil {
		q = q.Where("r.sandbox_cleanup_due_at <= ?", now.Add(*f.DueWithin))
	}
	if f.NeedsAttention {
		q = q.Where("(?) <> ''", attentionAt(now))
	}
	total, err := q.Count(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("count boxes: %w", err)
	}
	if err := q.OrderExpr("s.created_at DESC, s.id DESC").Limit(int64(f.Limit)).Offset(int64(f.Offset)).Scan(ctx); err != nil {
		return nil, 0, fmt.Errorf("list boxes: %w", err)
	}
	return boxes, int(total), s.completeShown(ctx, boxes)
}

// completeShown fills in what readers of whole boxes get: identities and exports.
func (s *Store) completeShown(ctx context.Context, boxes []*Sandbox) error {
	if err := s.completeBoxes(ctx, s.db, boxes); err != nil {
		return err
	}
	return s.completeExports(ctx, boxes)
}

// completeBoxes fills in the identities of boxes with one statement, and opens their secrets. A key that cannot be opened
// becomes "": it is read anew from the provider where it can be, and holds up neither a suspend nor a delete.
func (s *Store) completeBoxes(ctx context.Context, db bun.IDB, boxes []*Sandbox) error {
	if len(boxes) == 0 {
		return nil
	}
	byID := make(map[uuid.UUID]*Sandbox, len(boxes))
	ids := make([]uuid.UUID, len(boxes))
	for n, b := range boxes {
		byID[b.ID], ids[n] = b, b.ID
		b.SessionKey = s.openKey(b.SessionKey)
	}
	var found []*Identity
	err := db.NewSelect().Model(&found).
		Where("i.sandbox_id IN (?)", bun.List(ids)).
		OrderExpr("i.seen_at, i.kind, i.provider_id").
		Scan(ctx)
	if err != nil {
		return fmt.Errorf("read identities: %w", err)
	}
	for _, i := range found {
		i.SessionKey = s.openKey(i.SessionKey)
		byID[i.SandboxID].Identities = append(byID[i.SandboxID].Identities, i)
	}
	return nil
}

// LiveBackends returns the names of the backends that have boxes which are not deleted, sorted.
func (s *Store) LiveBackends(ctx context.Context) ([]string, error) {
	var names []string
	err := s.db.NewSelect().Model((*Sandbox)(nil)).ColumnExpr("DISTINCT backend").
		Where("observed <> ?", SeenDeleted).OrderExpr("backend").Scan(ctx, &names)
	if err != nil {
		return nil, fmt.Errorf("list the backends with boxes: %w", err)
	}
	return names, nil
}

// CountSandboxes counts the organization's boxes by backend and observed state.
func (s *Store) CountSandboxes(ctx context.Context, orgID uuid.UUID) (map[string]map[Observed]int, error) {
	var rows []struct {
		Backend  string
		Observed Observed
		N        int
	}
	err := s.db.NewSelect().Model((*Sandbox)(nil)).
		Column("s.backend", "s.observed").ColumnExpr("count(*) AS n").
		Where("s.org_id = ?", orgID).
		GroupExpr("s.backend, s.observed").
		Scan(ctx, &rows)
	if err != nil {
		return nil, fmt.Errorf("count boxes: %w", err)
	}
	counts := map[string]map[Observed]int{}
	for _, r := range rows {
		if counts[r.Backend] == nil {
			counts[r.Backend] = map[Observed]int{}
		}
		counts[r.Backend][r.Observed] = r.N
	}
	return counts, nil
}
