-- In which start of the box an agent was started: one that is gone in the next went with a pause.
ALTER TABLE agent_sessions ADD COLUMN awake_epoch INTEGER NOT NULL DEFAULT 0;
CREATE INDEX agent_sessions_old ON agent_sessions (closed_at) WHERE purged_at IS NOT NULL;
CREATE INDEX customer_keys_revoked ON customer_keys (revoked_at) WHERE revoked_at IS NOT NULL;
CREATE INDEX customer_keys_expired ON customer_keys (expires_at) WHERE expires_at IS NOT NULL;
