-- When a run of local mode that has ended is looked after next: it has no box whose settling would do so. NULL: nothing is left to do.
ALTER TABLE automation_runs ADD COLUMN aftercare_at TIMESTAMP;
CREATE INDEX automation_runs_aftercare ON automation_runs (aftercare_at) WHERE aftercare_at IS NOT NULL;
