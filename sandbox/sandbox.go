// Package sandbox decides about boxes and makes it so: the contract of a backend, the pure policy (Disposition, NextStep,
// Backoff), the Settler that alone talks to providers after dispatch, access into boxes, and the HTTP client of a box's
// agent server.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"automation/models"
)

// Errors of a backend. Whatever is none of them, nor errors.ErrUnsupported, can be retried.
var (
	// ErrGone means that the provider says the box does not exist.
	ErrGone = errors.New("box is gone")
	// ErrBusy means that the box is in transition: observed is deleting, Inspect comes next.
	ErrBusy = errors.New("box is in transition")
	// ErrQuota means that the provider's quota is used up; not transient.
	ErrQuota = errors.New("quota of the provider is used up")
	// ErrRefused means that the provider refuses the credential or the permission.
	ErrRefused = errors.New("provider refused the credential")
	// ErrInvalid means that the provider definitely refused the request itself (another 4xx): nothing was made.
	ErrInvalid = errors.New("provider refused the request")
)

// ProviderError is an answer of a provider that is neither success nor one of the errors above. A backend wraps it, so that
// the breaker can tell a sick provider (5xx) from a busy or picky one (4xx).
type ProviderError struct {
	Status     int
	Body       string // the start of it, without secrets
	RequestID  string
	RetryAfter time.Duration // how long the provider asked us to wait, bounded; 0: it did not say
}

// Error says status, body and request id.
func (e *ProviderError) Error() string {
	text := fmt.Sprintf("provider answered %d: %s", e.Status, e.Body)
	if e.RequestID != "" {
		text += " (request " + e.RequestID + ")"
	}
	return text
}

// SuspendKind says what survives a suspend (S0-124).
type SuspendKind string

// The suspend kinds.
const (
	SuspendNone     SuspendKind = "none"     // Suspend is errors.ErrUnsupported
	SuspendMemory   SuspendKind = "memory"   // in place, processes and files kept
	SuspendDisk     SuspendKind = "disk"     // in place, files kept, processes end
	SuspendSnapshot SuspendKind = "snapshot" // files kept in a snapshot; the box is made anew from it
)

// Timer is a native timer of a provider. Zero durations mean unknown or no limit.
type Timer struct {
	Supported bool          `json:"supported"`
	Action    string        `json:"action,omitempty"` // suspend, delete
	Default   time.Duration `json:"default,omitempty"`
	Max       time.Duration `json:"max,omitempty"`
}

// Capabilities is what a provider can do, read as data by decisions, API, CLI and console (S0-134…139).
type Capabilities struct {
	Suspend       SuspendKind `json:"suspend"`
	SameIdentity  bool        `json:"same_identity"` // after a resume (S0-125)
	List          bool        `json:"list"`          // without labels: only of one user's boxes
	ExactList     bool        `json:"exact_list"`    // a list shows a box as soon as it exists
	Labels        bool        `json:"labels"`
	LastActivity  bool        `json:"last_activity"`
	NativeIdle    Timer       `json:"native_idle"`
	NativeExpiry  Timer       `json:"native_expiry"`
	LookingWakes  bool        `json:"looking_wakes"`
	LookingCounts bool        `json:"looking_counts"` // looking at the box counts as activity: nothing polls it on a timer (S0-130, S0-131)
	KeepsHistory  bool        `json:"keeps_history"`  // the provider keeps the conversation itself after a delete (S1-049)
	SuspendedCost string      `json:"suspended_cost,omitempty"`
	Placed        bool        `json:"placed"`        // boxes are reachable only from their location
	FalseGone     bool        `json:"false_gone"`    // Delete may say ErrGone of a box that exists: believed after Inspect agrees
	Workspaces    bool        `json:"workspaces"`    // a directory of the box's host can be its workspace (Spec.Workspace)
	WakeSuspends  bool        `json:"wake_suspends"` // waking a box may suspend another of its owner: none is woken for an export

	CallsPerSecond float64 `json:"calls_per_second,omitempty"` // that the provider documents as its limit; 0: it documents none
}

// MemoryKept reports whether processes survive a suspend (S0-125).
func (c Capabilities) MemoryKept() bool { return c.Suspend == SuspendMemory }

// CanSuspend reports whether Suspend is supported at all (S0-126).
func (c Capabilities) CanSuspend() bool { return c.Suspend != SuspendNone && c.Suspend != "" }

// Evicts reports whether boxes that nobody uses are suspended by a duty of ours: they can be, the provider has no timer of its
// own that does it, and looking whether something runs in them does not keep them awake (S0-012, S0-019, S0-131).
func (c Capabilities) Evicts() bool {
	native := c.NativeIdle.Supported || c.NativeExpiry.Supported && c.NativeExpiry.Action == "suspend"
	return c.CanSuspend() && !native && !c.LookingCounts
}

// IdleTimer is what Create is asked to set as the native idle timer for boxes that may be idle for ttl: nothing where the
// provider has none (S0-018, S0-132).
func (c Capabilities) IdleTimer(ttl time.Duration) time.Duration {
	if !c.NativeIdle.Supported {
		return 0
	}
	if most := c.NativeIdle.Max; most > 0 {
		return min(ttl, most)
	}
	return ttl
}

// Label is what List filters by and Create sets: deployment exactly, and the workspace id.
type Label struct {
	Deployment  uuid.UUID
	WorkspaceID uuid.UUID // uuid.Nil in a List: all of the deployment
	// Owner is in a List whose boxes are meant, where the provider keeps no labels and shows a key only its own user's.
	Owner Owner
}

// Owner is whose box it is, for providers with credentials per user.
type Owner struct {
	OrgID  uuid.UUID
	UserID uuid.UUID
}

// Spec is what a box is created from.
type Spec struct {
	Label Label
	Owner Owner
	Idle  time.Duration // native idle timer to set, where the provider has one; 0: the provider's default (S0-018)

	Conversation uuid.UUID // that the box is for; uuid.Nil: it is a run's
	Workspace    string    // a caller's own directory on the box's host, which is never removed; "": the box has its own
	SessionKey   string    // that its agent server is to have; "": the backend makes one
	SecretKey    string    // with which its agent server is to encrypt what it keeps; "": the backend makes one
}

// Identity is a thing the provider named, as soon as it has named it.
type Identity struct {
	Kind       models.IdentityKind
	ProviderID string
	URL        string // of the agent server, "" when not known yet
	Key        string // session key of the agent server, "" when not known yet
}

// Ref is a box as a backend is asked about it.
type Ref struct {
	WorkspaceID uuid.UUID
	Location    string
	Owner       Owner
	Identities  []Identity // the open ones, oldest first
}

// Newest returns the newest open identity of kind, or false.
func (r Ref) Newest(kind models.IdentityKind) (Identity, bool) {
	for _, i := range slices.Backward(r.Identities) {
		if i.Kind == kind {
			return i, true
		}
	}
	return Identity{}, false
}

// Observation is what a provider shows of a box.
type Observation struct {
	State        models.Observed
	Identity     Identity
	Label        Label      // as far as the provider shows it
	LastActivity *time.Time // nil: not shown
	ExpiresAt    *time.Time // the provider's own expiry; nil: none shown
	CreatedAt    *time.Time // by the provider's clock; nil: not shown
	Detail       string     // the provider's words on a failed state
}

// Change is what a provider tells of a box without being asked. The zero one says that from now on nothing is missed.
type Change struct {
	WorkspaceID uuid.UUID
	State       models.Observed
}

// Backend is the adapter of one provider; a Decorate-d one limits rate, breaks circuits and counts. Every method returns
// promptly when ctx ends. The promises are held by sandboxtest.Exercise.
type Backend interface {
	// Capabilities never changes during the life of a process.
	Capabilities() Capabilities
	// Create makes a box, with the workspace id as its label and native timers set, and returns when it is named and started;
	// dispatch then polls Inspect until it runs. seen is called as soon as the provider has named a thing, before the next
	// remote step. seen retries until the row is stored; its error means that we are stopping: Create then deletes what it
	// made. ErrQuota, ErrRefused and ErrInvalid are definite: nothing was made.
	Create(ctx context.Context, spec Spec, seen func(Identity) error) error
	// Inspect looks at the box. ErrGone when the provider shows none of its open identities.
	Inspect(ctx context.Context, box Ref) (Observation, error)
	// Suspend stops the box and keeps it; nil means accepted, Inspect shows when it is done. Snapshot-and-recreate providers
	// name the snapshot by seen. Suspending a suspended box is nil.
	Suspend(ctx context.Context, box Ref, seen func(Identity) error) error
	// Resume wakes the box; nil means accepted. The identity may be new, named by seen. Resuming a running box is nil.
	Resume(ctx context.Context, box Ref, seen func(Identity) error) error
	// Delete removes all open identities; nil only when the provider shows them gone, ErrBusy when that is under way, ErrGone
	// when there was nothing.
	Delete(ctx context.Context, box Ref) error
	// List yields what carries the deployment label (in all states, all pages), or where there are no labels all boxes of
	// label.Owner, which cannot do without. errors.ErrUnsupported where the provider has no list, or none without an owner.
	List(ctx context.Context, label Label) iter.Seq2[Observation, error]
}
