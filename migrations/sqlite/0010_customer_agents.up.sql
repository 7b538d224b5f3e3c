-- The agents that customers start in boxes. No foreign keys to boxes: what an agent printed outlives its box.
CREATE TABLE customer_keys (
    id           TEXT      NOT NULL PRIMARY KEY,
    org_id       TEXT      NOT NULL,
    kind         TEXT      NOT NULL,
    name         TEXT      NOT NULL,
    start        TEXT      NOT NULL,
    hash         BLOB      NOT NULL,
    permissions  TEXT      NOT NULL,
    creator_org  TEXT      NOT NULL,
    creator_id   TEXT      NOT NULL,
    created_at   TIMESTAMP NOT NULL,
    expires_at   TIMESTAMP,
    revoked_at   TIMESTAMP,
    last_used_at TIMESTAMP
);
CREATE UNIQUE INDEX customer_keys_hash ON customer_keys (hash);
CREATE INDEX customer_keys_list ON customer_keys (org_id, created_at DESC, id DESC);

CREATE TABLE agent_features (
    scope_id   TEXT      NOT NULL PRIMARY KEY,
    org_id     TEXT      NOT NULL,
    enabled    BOOLEAN   NOT NULL,
    changed_at TIMESTAMP NOT NULL,
    changed_by TEXT      NOT NULL
);

CREATE TABLE agent_sessions (
    id         TEXT      NOT NULL PRIMARY KEY,
    sandbox_id TEXT      NOT NULL,
    org_id     TEXT      NOT NULL,
    created_at TIMESTAMP NOT NULL,
    created_by TEXT      NOT NULL,
    state      TEXT      NOT NULL,
    reason     TEXT      NOT NULL,
    exit_code  INTEGER,
    command_id    text,
    start_sent_at TIMESTAMP,
    stop_asked_at TIMESTAMP,
    closed_at     TIMESTAMP,
    purged_at     TIMESTAMP,
    updated_at    TIMESTAMP NOT NULL,
    last_seq      INTEGER   NOT NULL,
    bytes         INTEGER   NOT NULL,
    kept_bytes    INTEGER   NOT NULL,
    kept_from     INTEGER   NOT NULL,
    lease_token   TEXT,
    lease_until TIMESTAMP
);
CREATE UNIQUE INDEX agent_sessions_open ON agent_sessions (sandbox_id) WHERE closed_at IS NULL;
CREATE INDEX agent_sessions_newest ON agent_sessions (sandbox_id, created_at DESC, id DESC);
CREATE INDEX agent_sessions_closed ON agent_sessions (closed_at) WHERE closed_at IS NOT NULL AND purged_at IS NULL;

CREATE TABLE agent_output (
    session_id TEXT    NOT NULL REFERENCES agent_sessions (id) ON DELETE CASCADE,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    at_byte    INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    span       INTEGER NOT NULL,
    lines      BLOB,
    PRIMARY KEY (session_id, first_seq)
);

CREATE TABLE agent_tickets (
    hash       BLOB      NOT NULL PRIMARY KEY,
    org_id     TEXT      NOT NULL,
    sandbox_id TEXT      NOT NULL,
    session_id TEXT      NOT NULL,
    created_by TEXT      NOT NULL,
    expires_at TIMESTAMP NOT NULL,
    used_at    TIMESTAMP
);
CREATE INDEX agent_tickets_old ON agent_tickets (expires_at);
