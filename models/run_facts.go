package models

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// RecordCommand stores the id the box gave to the entrypoint, unconditionally: it is a fact, also on a finished run.
func (s *Store) RecordCommand(ctx context.Context, runID uuid.UUID, commandID string) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		return oneRun(ctx, tx, runID, tx.NewUpdate().Model((*Run)(nil)).
			Set("bash_command_id = ?", commandID).
			Where("id = ?", runID))
	})
}

// Output is what the settler took from a box before it was suspended or deleted.
type Output struct {
	ExitCode       *int
	Key            *string // blob key
	Bytes          int64
	FinishResponse json.RawMessage // merged into run_metadata.finish_tool_response
}

// RecordOutput stores output facts of a run, unconditionally; output once stored is never replaced by less (NULL).
func (s *Store) RecordOutput(ctx context.Context, runID uuid.UUID, o Output) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		r, err := s.lockRun(ctx, tx, runID)
		if err != nil {
			return err
		}
		now := s.Now()
		if o.ExitCode != nil {
			r.ExitCode = o.ExitCode
		}
		if o.Key != nil {
			r.OutputKey, r.OutputBytes, r.OutputAt = o.Key, &o.Bytes, &now
		}
		if o.FinishResponse != nil {
			if r.RunMetadata, err = withKey(r.RunMetadata, "finish_tool_response", storable(o.FinishResponse)); err != nil {
				return fmt.Errorf("merge the finish response of run %s: %w", runID, err)
			}
		}
		_, err = tx.NewUpdate().Model(r).
			Column("exit_code", "output_key", "output_bytes", "output_at", "run_metadata").
			WherePK().
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("record the output of run %s: %w", runID, err)
		}
		return nil
	})
}

// withKey returns a JSON object with one key set.
func withKey(object json.RawMessage, key string, value json.RawMessage) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if len(object) > 0 {
		if err := json.Unmarshal(object, &fields); err != nil {
			return nil, err
		}
	}
	if fields == nil { // the object was null
		fields = map[string]json.RawMessage{}
	}
	fields[key] = value
	return json.Marshal(fields)
}

// RecordLateCallback stores what a callback that lost still told: conversation_id and cost where they are NULL, and its
// error text in late_callback_error of a FAILED run's status_detail (design section 5).
func (s *Store) RecordLateCallback(ctx context.Context, runID uuid.UUID, conversationID *string, cost *float64, errText *string) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		r, err := s.lockRun(ctx, tx, runID)
		if err != nil {
			return err
		}
		if r.ConversationID == nil {
			r.ConversationID = conversationID
		}
		if r.Cost == nil {
			r.Cost = cost
		}
		if errText != nil && r.Status == RunFailed {
			text, err := json.Marshal(*errText)
			if err != nil {
				return err
			}
			if r.StatusDetail, err = withKey(r.StatusDetail, "late_callback_error", text); err != nil {
				return fmt.Errorf("merge the late error of run %s: %w", runID, err)
			}
		}
		_, err = tx.NewUpdate().Model(r).Column("conversation_id", "cost", "status_detail").WherePK().Exec(ctx)
		if err != nil {
			return fmt.Errorf("record the late callback of run %s: %w", runID, err)
		}
		return nil
	})
}

// ExpiredOutputs returns up to limit blob keys of stored outputs whose box has been gone (or, without a box, whose run has
// been terminal) since before t; ForgetOutput clears the columns after the blob was removed (blob first, then its row).
func (s *Store) ExpiredOutputs(ctx context.Context, t time.Time, limit int) (map[uuid.UUID]string, error) {
	var rows []struct {
		ID        uuid.UUID
		OutputKey string
	}
	err := s.db.NewSelect().Model((*Run)(nil)).
		Column("r.id", "r.output_key").
		Join("LEFT JOIN sandboxes AS s ON s.id = r.box_id").
		Where("r.output_key IS NOT NULL").
		Where("r.output_at < ?", t). // never after the box went: bounds the scan of the index
		WhereGroup(" AND ", func(q *bun.SelectQuery) *bun.SelectQuery {
			return q.Where("s.deleted_at < ?", t).
				WhereOr("s.observed = ? AND s.observed_at < ?", SeenMissing, t).
				WhereOr("s.id IS NULL AND r.completed_at < ?", t)
		}).
		OrderExpr("r.output_at").
		Limit(int64(limit)).
		Scan(ctx, &rows)
	if err != nil {
		return nil, fmt.Errorf("look for expired outputs: %w", err)
	}
	keys := make(map[uuid.UUID]string, len(rows))
	for _, row := range rows {
		keys[row.ID] = row.OutputKey
	}
	return keys, nil
}

// ForgetOutput clears output_key of a run.
func (s *Store) ForgetOutput(ctx context.Context, runID uuid.UUID) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		return oneRun(ctx, tx, runID, tx.NewUpdate().Model((*Run)(nil)).
			Set("output_key = NULL").
			Set("output_bytes = NULL").
			Where("id = ?", runID))
	})
}
