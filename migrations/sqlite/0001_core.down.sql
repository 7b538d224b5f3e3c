-- Run and box point to each other, so the rows go first.
UPDATE automation_runs SET box_id = NULL;
DROP TABLE uploads;
DROP TABLE sandbox_events;
DROP TABLE sandbox_attachments;
DROP TABLE sandbox_identities;
DROP TABLE sandboxes;
DROP TABLE automation_runs;
DROP TABLE automations;
DROP TABLE deployment;
