DROP INDEX customer_keys_expired;
DROP INDEX customer_keys_revoked;
DROP INDEX agent_sessions_old;
ALTER TABLE agent_sessions DROP COLUMN awake_epoch;
