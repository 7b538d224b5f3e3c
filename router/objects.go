package router

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"

	"automation/models"
)

// The JSON objects. Every field is always written, null too (contract section 1).

// stamp is a time in an answer: UTC with Z, microseconds only when there are any.
type stamp time.Time

// MarshalText implements encoding.TextMarshaler.
func (s stamp) MarshalText() ([]byte, error) {
	t, layout := time.Time(s).UTC().Truncate(time.Microsecond), "2006-01-02T15:04:05Z"
	if t.Nanosecond() != 0 {
		layout = "2006-01-02T15:04:05.000000Z"
	}
	return []byte(t.Format(layout)), nil
}

func optStamp(t *time.Time) *stamp {
	if t == nil || t.IsZero() {
		return nil
	}
	s := stamp(*t)
	return &s
}

// raw shows stored JSON as it is, and nothing as null.
func raw(m json.RawMessage) json.RawMessage {
	if len(m) == 0 {
		return json.RawMessage("null")
	}
	return m
}

// automationObject is the contract's automation (section 2.1), with overlap added.
type automationObject struct {
	AgentProfileID  *uuid.UUID             `json:"agent_profile_id"`
	ID              uuid.UUID              `json:"id"`
	UserID          uuid.UUID              `json:"user_id"`
	OrgID           uuid.UUID              `json:"org_id"`
	Model           *string                `json:"model"`
	Name            string                 `json:"name"`
	Description     *string                `json:"description"`
	Prompt          *string                `json:"prompt"`
	PresetMetadata  json.RawMessage        `json:"preset_metadata"`
	PluginSpec      json.RawMessage        `json:"plugin_spec"`
	Trigger         json.RawMessage        `json:"trigger"`
	Observability   json.RawMessage        `json:"observability_associations"`
	Tags            []string               `json:"tags"`
	TarballPath     string                 `json:"tarball_path"`
	SetupScriptPath *string                `json:"setup_script_path"`
	Entrypoint      string                 `json:"entrypoint"`
	Timeout         *int                   `json:"timeout"`
	KeepAlive       *bool                  `json:"keep_alive"`
	Overlap         models.Overlap         `json:"overlap"`
	Enabled         bool                   `json:"enabled"`
	State           models.AutomationState `json:"state"`
	DisabledReason  *string                `json:"disabled_reason"`
	DisabledDetail  json.RawMessage        `json:"disabled_detail"`
	DisabledAt      *stamp                 `json:"disabled_at"`
	LastTriggeredAt *stamp                 `json:"last_triggered_at"`
	NextRunAt       *stamp                 `json:"next_run_at"`
	CreatedAt       stamp                  `json:"created_at"`
	UpdatedAt       stamp                  `json:"updated_at"`
}

func showAutomation(a *models.Automation) automationObject {
	tags := a.Tags
	if tags == nil {
		tags = []string{}
	}
	return automationObject{
		AgentProfileID: a.AgentProfileID, ID: a.ID, UserID: a.UserID, OrgID: a.OrgID, Model: a.Model, Name: a.Name,
		Description: a.Description, Prompt: a.Prompt, PresetMetadata: raw(a.PresetMetadata), PluginSpec: raw(a.PluginSpec),
		Trigger: raw(a.Trigger), Observability: raw(a.Observability), Tags: tags, TarballPath: a.TarballPath,
		SetupScriptPath: a.SetupScriptPath, Entrypoint: a.Entrypoint, Timeout: a.TimeoutSeconds, KeepAlive: a.KeepAlive,
		Overlap: a.Overlap, Enabled: a.State == models.AutomationActive, State: a.State, DisabledReason: a.DisabledReason,
		DisabledDetail: disabledDetail(a.DisabledDetail), DisabledAt: optStamp(a.DisabledAt), LastTriggeredAt: optStamp(a.LastTriggeredAt),
		NextRunAt: optStamp(a.NextRunAt), CreatedAt: stamp(a.CreatedAt), UpdatedAt: stamp(a.UpdatedAt),
	}
}

// runObject is the contract's run (section 3.1), with exit_code, sandbox and cleanup added (design section 11).
type runObject struct {
	ID             uuid.UUID             `json:"id"`
	AutomationID   uuid.UUID             `json:"automation_id"`
	Status         models.RunStatus      `json:"status"`
	TriggerSource  *models.TriggerSource `json:"trigger_source"`
	ErrorDetail    *string               `json:"error_detail"`
	StatusDetail   json.RawMessage       `json:"status_detail"`
	CurrentPhase   *string               `json:"current_phase"`
	ConversationID *string               `json:"conversation_id"`
	Cost           *float64              `json:"cost"`
	TimeoutAt      *stamp                `json:"timeout_at"`
	SandboxID      *string               `json:"sandbox_id"`
	BashCommandID  *string               `json:"bash_command_id"`
	Observability  json.RawMessage       `json:"observability_associations"`
	RunMetadata    json.RawMessage       `json:"run_metadata"`
	Runtime        json.RawMessage       `json:"resolved_runtime"`
	CreatedAt      stamp                 `json:"created_at"`
	StartedAt      *stamp                `json:"started_at"`
	CompletedAt    *stamp                `json:"completed_at"`

	ExitCode *int          `json:"exit_code"`
	HasLogs  bool          `json:"has_logs"`
	Sandbox  *runSandbox   `json:"sandbox"`
	Cleanup  cleanupObject `json:"cleanup"`
}

// runSandbox is the box of a run in short.
type runSandbox struct {
	ID          uuid.UUID       `json:"id"` // workspace id (S0-118)
	Backend     string          `json:"backend"`
	ProviderID  *string         `json:"provider_id"`
	Desired     models.Desired  `json:"desired"`
	Observed    models.Observed `json:"observed"`
	SuspendedAt *stamp          `json:"suspended_at"`
}

func (s *server) showRun(r *models.Run) runObject {
	o := runObject{
		ID: r.ID, AutomationID: r.AutomationID, Status: r.Status, TriggerSource: r.TriggerSource, ErrorDetail: r.ErrorDetail,
		StatusDetail: statusDetail(r.StatusDetail), CurrentPhase: r.CurrentPhase, ConversationID: r.ConversationID, Cost: r.Cost,
		TimeoutAt: optStamp(r.TimeoutAt), SandboxID: r.ProviderID, BashCommandID: r.BashCommandID,
		Observability: raw(r.Observability), RunMetadata: raw(r.RunMetadata), Runtime: raw(r.Runtime),
		CreatedAt: stamp(r.CreatedAt), StartedAt: optStamp(r.StartedAt), CompletedAt: optStamp(r.CompletedAt),
		ExitCode: r.ExitCode, HasLogs: r.OutputKey != nil,
		Cleanup: s.showCleanup(r.Box, r.CleanupDueAt, r.CompletedAt),
	}
	if b := r.Box; b != nil {
		o.Sandbox = &runSandbox{
			ID: b.ID, Backend: b.Backend, ProviderID: r.ProviderID, Desired: b.Desired, Observed: b.Observed,
			SuspendedAt: optStamp(b.SuspendedAt),
		}
	}
	return o
}

// statusDetail writes the times in it as the contract does there: with +00:00.
func statusDetail(stored json.RawMessage) json.RawMessage {
	var detail map[string]any
	if json.Unmarshal(stored, &detail) != nil || detail == nil {
		return raw(stored)
	}
	for _, name := range []string{"first_seen_at", "last_seen_at"} {
		if at, isString := detail[name].(string); isString {
			if t, err := time.Parse(time.RFC3339Nano, at); err == nil {
				text, _ := stamp(t).MarshalText()
				detail[name] = strings.TrimSuffix(string(text), "Z") + "+00:00"
			}
		}
	}
	text, err := json.Marshal(detail)
	if err != nil {
		return raw(stored)
	}
	return text
}

// disabledDetail writes the status detail in it like that of a run.
func disabledDetail(stored json.RawMessage) json.RawMessage {
	var detail map[string]json.RawMessage
	if json.Unmarshal(stored, &detail) != nil || detail["status_detail"] == nil {
		return raw(stored)
	}
	detail["status_detail"] = statusDetail(detail["status_detail"])
	text, err := json.Marshal(detail)
	if err != nil {
		return raw(stored)
	}
	return text
}

// cleanupState is where the removal of a box stands.
type cleanupState string

const (
	cleanupNone    cleanupState = "none"    // nothing is planned
	cleanupPending cleanupState = "pending" // a date is set
	cleanupDue     cleanupState = "due"     // the date has come, or deletion is ordered and under way
	cleanupDeleted cleanupState = "deleted" // the provider shows it gone
	cleanupFailed  cleanupState = "failed"  // deletion is ordered, and its last try failed; it is repeated
)

// cleanupObject says when the box of a run goes and why.
type cleanupObject struct {
	DueAt       *stamp       `json:"due_at"`
	SecondsLeft *int64       `json:"seconds_left"`
	Source      *string      `json:"source"`
	Kept        bool         `json:"kept"`
	State       cleanupState `json:"state"`
	LastError   *string      `json:"last_error"`
	Attempts    int          `json:"attempts"`
}

// showCleanup puts it together. source names what the date or the order came from: the configured delay, a change of it by
// hand, a person's keeping, or the reason of the order to delete.
func (s *server) showCleanup(b *models.Sandbox, due, completed *time.Time) cleanupObject {
	o := cleanupObject{State: cleanupNone, DueAt: optStamp(due)}
	source := ""
	if o.DueAt != nil {
		left := max(0, int64(due.Sub(s.Store.Now())/time.Second))
		o.SecondsLeft, o.State, source = &left, cleanupPending, "changed"
		if completed != nil && due.Equal(completed.Add(s.Settings.CleanupDelay)) {
			source = "delay"
		}
		if !due.After(s.Store.Now()) {
			o.State = cleanupDue
		}
	}
	if b != nil {
		o.LastError, o.Attempts, o.Kept = b.LastError, b.Attempts, b.KeptAt != nil
		if o.Kept {
			source = "kept"
		}
		switch {
		case b.Observed == models.SeenDeleted:
			o.State, source = cleanupDeleted, b.OrderReason
		case b.Desired == models.WantDeleted && b.LastError != nil:
			o.State, source = cleanupFailed, b.OrderReason
		case b.Desired == models.WantDeleted:
			o.State, source = cleanupDue, b.OrderReason
		}
	}
	if source != "" {
		o.Source = &source
	}
	return o
}

// sandboxObject is a box. What it costs is said by billed: compute while it is awake, storage while it is only paused, which
// goes on until it is deleted (S0-005), nothing when it is gone.
type sandboxObject struct {
	ID               uuid.UUID        `json:"id"`
	OrgID            uuid.UUID        `json:"org_id"`
	UserID           uuid.UUID        `json:"user_id"`
	AutomationID     *uuid.UUID       `json:"automation_id"`
	RunID            *uuid.UUID       `json:"run_id"`
	Backend          string           `json:"backend"`
	Location         string           `json:"location"`
	CreatedBy        string           `json:"created_by"`
	ProviderID       *string          `json:"provider_id"`
	Identities       []identityObject `json:"identities"`
	Desired          models.Desired   `json:"desired"`
	Observed         models.Observed  `json:"observed"`
	ObservedAt       *stamp           `json:"observed_at"`
	OrderedAt        *stamp           `json:"ordered_at"`
	OrderedBy        string           `json:"ordered_by"`
	OrderReason      string           `json:"order_reason"`
	SuspendedAt      *stamp           `json:"suspended_at"`
	SuspendedSeconds *int64           `json:"suspended_seconds"`
	MemoryKept       bool             `json:"memory_kept"`
	Billed           string           `json:"billed"`
	BilledDetail     string           `json:"billed_detail"`
	ExpiresAt        *stamp           `json:"expires_at"`
	LastAccessAt     *stamp           `json:"last_access_at"`
	CreatedAt        stamp            `json:"created_at"`
	DeletedAt        *stamp           `json:"deleted_at"`
	Kept             *keptObject      `json:"kept"`
	Note             string           `json:"note"`
	NeedsAttention   *string          `json:"needs_attention"`
	ReclaimedBytes   int64            `json:"reclaimed_bytes"`
	Storage          json.RawMessage  `json:"storage"`
	StorageAsOf      *stamp           `json:"storage_as_of"`
	Export           *exportObject    `json:"export"`
	Cleanup          cleanupObject    `json:"cleanup"`
}

type identityObject struct {
	Kind       models.IdentityKind `json:"kind"`
	ProviderID string              `json:"provider_id"`
	SeenAt     stamp               `json:"seen_at"`
	GoneAt     *stamp              `json:"gone_at"`
}

type keptObject struct {
	At     stamp  `json:"at"`
	By     string `json:"by"`
	Reason string `json:"reason"`
}

func (s *server) showSandbox(b *models.Sandbox) sandboxObject {
	can := s.Capabilities(b.Backend)
	o := sandboxObject{
		ID: b.ID, OrgID: b.OrgID, UserID: b.UserID, AutomationID: b.AutomationID, RunID: b.RunID, Backend: b.Backend,
		Location: b.Location, CreatedBy: b.CreatedBy, Identities: []identityObject{}, Desired: b.Desired, Observed: b.Observed,
		ObservedAt: optStamp(b.ObservedAt), OrderedAt: optStamp(&b.OrderedAt), OrderedBy: b.OrderedBy, OrderReason: b.OrderReason,
		SuspendedAt: optStamp(b.SuspendedAt), MemoryKept: can.MemoryKept(), ExpiresAt: optStamp(b.ExpiresAt),
		LastAccessAt: optStamp(b.LastAccessAt), CreatedAt: stamp(b.CreatedAt), DeletedAt: optStamp(b.DeletedAt), Note: b.Note,
		ReclaimedBytes: b.ReclaimedBytes, Storage: raw(b.Storage), StorageAsOf: optStamp(b.StorageAt), Export: showExport(b),
		Cleanup: s.showCleanup(b, b.DueAt, b.RunCompletedAt),
	}
	for _, i := range b.Identities {
		o.Identities = append(o.Identities, identityObject{i.Kind, i.ProviderID, stamp(i.SeenAt), optStamp(i.GoneAt)})
		if i.Kind == models.IdentityBox {
			o.ProviderID = &i.ProviderID // the newest one
		}
	}
	switch b.Observed {
	case models.SeenSuspended:
		o.Billed, o.BilledDetail = "storage", can.SuspendedCost
		if b.SuspendedAt != nil {
			age := max(0, int64(s.Store.Now().Sub(*b.SuspendedAt)/time.Second))
			o.SuspendedSeconds = &age
		}
	case models.SeenDeleted, models.SeenMissing:
		o.Billed = "nothing"
	default:
		o.Billed = "compute"
		if b.CreateSentAt == nil && len(b.Identities) == 0 { // no provider was asked for it yet
			o.Billed = "nothing"
		}
	}
	if b.KeptAt != nil {
		o.Kept = &keptObject{stamp(*b.KeptAt), b.KeptBy, b.KeptReason}
	}
	if b.NeedsAttention != "" {
		o.NeedsAttention = &b.NeedsAttention
	}
	return o
}

// eventObject is one line of a box's timeline.
type eventObject struct {
	ID           uuid.UUID       `json:"id"`
	At           stamp           `json:"at"`
	SandboxID    *uuid.UUID      `json:"sandbox_id"`
	RunID        *uuid.UUID      `json:"run_id"`
	AutomationID *uuid.UUID      `json:"automation_id"`
	What         string          `json:"what"`
	Actor        string          `json:"actor"`
	Reason       string          `json:"reason"`
	Outcome      string          `json:"outcome"`
	Bytes        int64           `json:"bytes"`
	DurationMS   int64           `json:"duration_ms"`
	Detail       json.RawMessage `json:"detail"`
}

func showEvent(e *models.Event) eventObject {
	return eventObject{
		ID: e.ID, At: stamp(e.At), SandboxID: e.SandboxID, RunID: e.RunID, AutomationID: e.AutomationID, What: e.What,
		Actor: e.Actor, Reason: e.Reason, Outcome: e.Outcome, Bytes: e.Bytes, DurationMS: e.DurationMS, Detail: raw(e.Detail),
	}
}

// uploadObject is the contract's upload (section 2.6).
type uploadObject struct {
	ID           uuid.UUID           `json:"id"`
	UserID       uuid.UUID           `json:"user_id"`
	OrgID        uuid.UUID           `json:"org_id"`
	Name         string              `json:"name"`
	Description  *string             `json:"description"`
	Status       models.UploadStatus `json:"status"`
	ErrorMessage *string             `json:"error_message"`
	SizeBytes    *int64              `json:"size_bytes"`
	TarballPath  *string             `json:"tarball_path"`
	CreatedAt    string              `json:"created_at"`
	UpdatedAt    string              `json:"updated_at"`
}

func (s *server) showUpload(u *models.Upload) uploadObject {
	o := uploadObject{
		ID: u.ID, UserID: u.UserID, OrgID: u.OrgID, Name: u.Name, Description: u.Description, Status: u.Status,
		ErrorMessage: u.ErrorMessage, SizeBytes: u.SizeBytes, CreatedAt: s.isoTime(u.CreatedAt), UpdatedAt: s.isoTime(u.UpdatedAt),
	}
	if u.Status == models.UploadCompleted {
		path := internalScheme + "uploads/" + u.ID.String()
		o.TarballPath = &path
	}
	return o
}

// isoTime is how the contract writes times in uploads: +00:00 on PostgreSQL, no suffix on SQLite.
func (s *server) isoTime(t time.Time) string {
	text, _ := stamp(t).MarshalText()
	plain := strings.TrimSuffix(string(text), "Z")
	if s.Store.Dialect() == models.SQLite {
		return plain
	}
	return plain + "+00:00"
}
