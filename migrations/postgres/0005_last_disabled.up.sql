-- When the automation was switched off last, by whomever: failures of earlier runs no longer count against it.
ALTER TABLE automations ADD COLUMN last_disabled_at timestamptz;
