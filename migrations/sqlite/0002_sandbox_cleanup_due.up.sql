ALTER TABLE automation_runs ADD COLUMN sandbox_cleanup_due_at TIMESTAMP;
CREATE INDEX automation_runs_cleanup_due ON automation_runs (sandbox_cleanup_due_at) WHERE sandbox_cleanup_due_at IS NOT NULL;
