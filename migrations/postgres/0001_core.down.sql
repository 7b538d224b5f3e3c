ALTER TABLE automation_runs DROP COLUMN box_id;
DROP TABLE uploads;
DROP TABLE sandbox_events;
DROP TABLE sandbox_attachments;
DROP TABLE sandbox_identities;
DROP TABLE sandboxes;
DROP TABLE automation_runs;
DROP TABLE automations;
DROP TABLE deployment;
