DROP INDEX sandboxes_awake;
ALTER TABLE sandboxes DROP COLUMN idle_check_at;
ALTER TABLE sandbox_attachments DROP COLUMN awake_epoch;
ALTER TABLE sandboxes DROP COLUMN held_because;
DROP TABLE runtimes;
