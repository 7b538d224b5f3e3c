-- The agents that customers start in boxes. No foreign keys to boxes: what an agent printed outlives its box.
CREATE TABLE customer_keys (
    id           uuid        NOT NULL PRIMARY KEY,
    org_id       uuid        NOT NULL,
    kind         text        NOT NULL,
    name         text        NOT NULL,
    start        text        NOT NULL,
    hash         bytea       NOT NULL,
    permissions  text        NOT NULL,
    creator_org  uuid        NOT NULL,
    creator_id   uuid        NOT NULL,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);
CREATE UNIQUE INDEX customer_keys_hash ON customer_keys (hash);
CREATE INDEX customer_keys_list ON customer_keys (org_id, created_at DESC, id DESC);

CREATE TABLE agent_features (
    scope_id   uuid        NOT NULL PRIMARY KEY,
    org_id     uuid        NOT NULL,
    enabled    boolean     NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text        NOT NULL
);

CREATE TABLE agent_sessions (
    id            text        NOT NULL PRIMARY KEY,
    sandbox_id    uuid        NOT NULL,
    org_id        uuid        NOT NULL,
    created_at    timestamptz NOT NULL,
    created_by    text        NOT NULL,
    state         text        NOT NULL,
    reason        text        NOT NULL,
    exit_code     bigint,
    command_id    text,
    start_sent_at timestamptz,
    stop_asked_at timestamptz,
    closed_at     timestamptz,
    purged_at     timestamptz,
    updated_at    timestamptz NOT NULL,
    last_seq      bigint      NOT NULL,
    bytes         bigint      NOT NULL,
    kept_bytes    bigint      NOT NULL,
    kept_from     bigint      NOT NULL,
    lease_token   uuid,
    lease_until   timestamptz
);
CREATE UNIQUE INDEX agent_sessions_open ON agent_sessions (sandbox_id) WHERE closed_at IS NULL;
CREATE INDEX agent_sessions_newest ON agent_sessions (sandbox_id, created_at DESC, id DESC);
CREATE INDEX agent_sessions_closed ON agent_sessions (closed_at) WHERE closed_at IS NOT NULL AND purged_at IS NULL;

CREATE TABLE agent_output (
    session_id text   NOT NULL REFERENCES agent_sessions (id) ON DELETE CASCADE,
    first_seq  bigint NOT NULL,
    last_seq   bigint NOT NULL,
    at_byte    bigint NOT NULL,
    bytes      bigint NOT NULL,
    span       bigint NOT NULL,
    lines      bytea,
    PRIMARY KEY (session_id, first_seq)
);

CREATE TABLE agent_tickets (
    hash       bytea       NOT NULL PRIMARY KEY,
    org_id     uuid        NOT NULL,
    sandbox_id uuid        NOT NULL,
    session_id text        NOT NULL,
    created_by text        NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at    timestamptz
);
CREATE INDEX agent_tickets_old ON agent_tickets (expires_at);
