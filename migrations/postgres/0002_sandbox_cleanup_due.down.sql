DROP INDEX automation_runs_cleanup_due;
ALTER TABLE automation_runs DROP COLUMN sandbox_cleanup_due_at;
