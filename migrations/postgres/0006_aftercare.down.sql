DROP INDEX automation_runs_aftercare;
ALTER TABLE automation_runs DROP COLUMN aftercare_at;
