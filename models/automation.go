package models

import (
	"context"
	"encoding/json"
	"fmt"
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
	LastDisabledAt  *time.Time      `bun:"last_disabled_at"` // stays when it is enabled again: earlier failures no longer count
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

// CreateAutomation inserts a. ID, CreatedAt and UpdatedAt are set here when zero. ErrConflict: a live automation of the
// organization was made from the same template already.
func (s *Store) CreateAutomation(ctx context.Context, a *Automation) error {
	now := s.Now()
	if a.ID == uuid.Nil {
		a.ID = newID()
	}
	if a.CreatedAt.IsZero() {
		a.CreatedAt = now
	}
	if a.UpdatedAt.IsZero() {
		a.UpdatedAt = a.CreatedAt
	}
	if a.Tags == nil {
		a.Tags = []string{}
	}
	if a.Overlap == "" {
		a.Overlap = OverlapAllow
	}
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewInsert().Model(a).Exec(ctx)
		return err
	})
	if isUnique(err) {
		return fmt.Errorf("create automation %s: %w: %w", a.ID, ErrConflict, err)
	}
	if err != nil {
		return fmt.Errorf("create automation %s: %w", a.ID, err)
	}
	return nil
}

// Automation returns a live automation of the organization, else ErrNotFound.
func (s *Store) Automation(ctx context.Context, orgID, id uuid.UUID) (*Automation, error) {
	a := new(Automation)
	err := selectLive(s.db, a, orgID).Where("a.id = ?", id).Scan(ctx)
	if err != nil {
		return nil, notFound(err, "read automation %s", id)
	}
	return a, nil
}

// AutomationByTemplate returns the organization's live automation made from the template, else ErrNotFound.
func (s *Store) AutomationByTemplate(ctx context.Context, orgID uuid.UUID, templateID string) (*Automation, error) {
	a := new(Automation)
	err := selectLive(s.db, a, orgID).Where("a.template_id = ?", templateID).Scan(ctx)
	if err != nil {
		return nil, notFound(err, "look for the automation of template %q", templateID)
	}
	return a, nil
}

// selectLive selects automations of an organization that are not deleted.
func selectLive(db bun.IDB, model any, orgID uuid.UUID) *bun.SelectQuery {
	return db.NewSelect().Model(model).Where("a.org_id = ?", orgID).Where("a.deleted_at IS NULL")
}

// ListAutomations returns a page and the total number of matches.
func (s *Store) ListAutomations(ctx context.Context, f AutomationFilter) ([]*Automation, int, error) {
	var list []*Automation
	q := selectLive(s.db, &list, f.OrgID)
	if f.CreatedBy != nil {
		q = q.Where("a.user_id = ?", *f.CreatedBy)
	}
	if f.NotBy != nil {
		q = q.Where("a.user_id <> ?", *f.NotBy)
	}
	if f.Tag != "" {
		q = q.Where("EXISTS (SELECT 1 FROM "+s.tagsOf()+" WHERE t.value = ?)", f.Tag)
	}
	total, err := q.Count(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("count automations: %w", err)
	}
	if err := q.OrderExpr("a.created_at DESC, a.id DESC").Limit(int64(f.Limit)).Offset(int64(f.Offset)).Scan(ctx); err != nil {
		return nil, 0, fmt.Errorf("list automations: %w", err)
	}
	return list, int(total), nil
}
