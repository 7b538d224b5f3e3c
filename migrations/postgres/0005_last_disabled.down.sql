ALTER TABLE automations DROP COLUMN last_disabled_at;
