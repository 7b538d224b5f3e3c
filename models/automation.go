package models

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// AutomationState is the life-cycle state of an automation (contract section 2.1).
type AutomationState string

// The states of an automation.
const (
	AutomationActive   AutomationState = "ACTIVE"
	AutomationInactive AutomationState = "INACTIVE"
	AutomationDraft    AutomationState = "DRAFT"
)

// Overlap says what happens to a scheduled run while an earlier one of the same automation still works (BR-02).
type Overlap string

// The overlap policies. Allow is the default, as in the Python service.
const (
	OverlapAllow   Overlap = "Allow"
	OverlapForbid  Overlap = "Forbid"
	OverlapReplace Overlap = "Replace"
)

// Trigger is what starts runs of an automation. It is stored and returned with all its defaults filled in.
type Trigger struct {
	Type     string `json:"type"` // cron or event
	Schedule string `json:"schedule,omitempty"`
	Timezone string `json:"timezone,omitempty"`
}

// Automation is a row of automations: what to run, when, and how.
type Automation struct {
	bun.BaseModel `bun:"table:automations,alias:a"`

	ID              uuid.UUID       `bun:"id,pk"`
	UserID          uuid.UUID       `bun:"user_id"`
	OrgID           uuid.UUID       `bun:"org_id"`
	Name            string          `bun:"name"`
	Description     *string         `bun:"description"`
	Prompt          *string         `bun:"prompt"`
	PresetMetadata  json.RawMessage `bun:"preset_metadata,nullzero"`
	PluginSpec      json.RawMessage `bun:"plugin_spec,nullzero"`
	Trigger         json.RawMessage `bun:"trigger"` // the contract's JSON; ParseTrigger reads it
	Observability   json.RawMessage `bun:"observability_associations,nullzero"`
	Tags            []string        `bun:"tags,type:jsonb"`
	TarballPath     string          `bun:"tarball_path"`
	SetupScriptPath *string         `bun:"setup_script_path"`
	Entrypoint      string          `bun:"entrypoint"`
	TimeoutSeconds  *int            `bun:"timeout_seconds"`
	KeepAlive       *bool           `bun:"keep_alive"`
	Overlap         Overlap         `bun:"overlap"`
	State           AutomationState `bun:"state"`
	DisabledReason  *string         `bun:"disabled_reason"`
	DisabledDetail  json.RawMessage `bun:"disabled_detail,nullzero"`
	DisabledAt      *time.Time      `bun:"disabled_at"`
	Model           *string         `bun:"model"`
	AgentProfileID  *uuid.UUID      `bun:"agent_profile_id"`
	TemplateID      *string         `bun:"template_id"`
	LastTriggeredAt *time.Time      `bun:"last_triggered_at"`
	NextRunAt       *time.Time      `bun:"next_run_at"` // NULL: never fires (not cron, not enabled, impossible schedule)
	CreatedAt       time.Time       `bun:"created_at"`
	UpdatedAt       time.Time       `bun:"updated_at"`
	DeletedAt       *time.Time      `bun:"deleted_at"`
}

// Enabled reports whether schedules and events may start runs of a.
func (a *Automation) Enabled() bool { return a.State == AutomationActive && a.DeletedAt == nil }

// KeepsAlive reports whether boxes of a are never stamped, paused or deleted by us (S1-020, S1-022).
func (a *Automation) KeepsAlive() bool { return a.KeepAlive != nil && *a.KeepAlive }

// AutomationFilter selects automations of one organization, newest first.
type AutomationFilter struct {
	OrgID     uuid.UUID
	CreatedBy *uuid.UUID // only this user's
	NotBy     *uuid.UUID // all but this user's
	Tag       string
	Limit     int
	Offset    int
}

// CreateAutomation inserts a. ID, CreatedAt and UpdatedAt are set here when zero.
func (s *Store) CreateAutomation(ctx context.Context, a *Automation) error { panic("unwritten") }

// Automation returns a live automation of the organization, else ErrNotFound.
func (s *Store) Automation(ctx context.Context, orgID, id uuid.UUID) (*Automation, error) {
	panic("unwritten")
}

// AutomationByTemplate returns the organization's live automation made from the template, else ErrNotFound.
func (s *Store) AutomationByTemplate(ctx context.Context, orgID uuid.UUID, templateID string) (*Automation, error) {
	panic("unwritten")
}

// ListAutomations returns a page and the total number of matches.
func (s *Store) ListAutomations(ctx context.Context, f AutomationFilter) ([]*Automation, int, error) {
	panic("unwritten")
}

// UpdateAutomation locks the live automation, lets change edit it (pure: no I/O; its error aborts and is returned as it
// is), writes it, and in the same transaction does what follows from the difference: keep_alive switched on clears the
// stamps of its boxes that are not ordered deleted; switched off stamps the boxes of its terminal runs from now + delay
// (design section 9); no longer enabled makes its PENDING runs that are not manual SKIPPED ("Automation disabled").
// ErrNotFound when there is none in the organization.
func (s *Store) UpdateAutomation(ctx context.Context, orgID, id uuid.UUID, delay time.Duration, change func(*Automation) error) (*Automation, error) {
	panic("unwritten")
}

// DeleteAutomation soft-deletes: state INACTIVE, deleted_at now, the disable fields become manual_delete if it was
// enabled, and all its PENDING runs, manual ones too, become SKIPPED. RUNNING runs go on. ErrNotFound when there is none.
func (s *Store) DeleteAutomation(ctx context.Context, orgID, id uuid.UUID) error { panic("unwritten") }

// Due is one automation whose next fire time has come.
type Due struct {
	Automation *Automation
	Running    bool // a run of it is PENDING or RUNNING: the overlap policy decides
}

// DueSchedules returns up to limit enabled cron automations with next_run_at <= now, earliest first.
func (s *Store) DueSchedules(ctx context.Context, limit int) ([]Due, error) { panic("unwritten") }

// Fire is what the schedule duty decided for one due automation.
type Fire struct {
	AutomationID uuid.UUID
	Was          time.Time  // the next_run_at that was read: the write happens only where it still stands
	At           *time.Time // scheduled instant of the run to create; nil: none (impossible schedule, missed while off)
	Next         *time.Time // the new next_run_at; nil: never again
	Skip         bool       // create the run as SKIPPED (overlap Forbid)
	Replace      bool       // overlap Replace: the caller finishes the older runs afterwards
	Disable      string     // not empty: set INACTIVE with this disabled_reason (schedule cannot be evaluated)
}

// FireSchedules applies fires set-based in one transaction: PENDING (or SKIPPED) runs with trigger_source cron, unique per
// automation and scheduled instant (a repeat inserts nothing), next_run_at moved, last_triggered_at set. It returns the
// runs it really inserted.
func (s *Store) FireSchedules(ctx context.Context, fires []Fire) ([]*Run, error) { panic("unwritten") }

// NextScheduleAt returns the earliest next_run_at of all enabled automations, or nil.
func (s *Store) NextScheduleAt(ctx context.Context) (*time.Time, error) { panic("unwritten") }
