-- No foreign keys to boxes and runs: the history of sweeps outlives them.
CREATE TABLE sweeps (
    id                 uuid        NOT NULL PRIMARY KEY,
    org_id             uuid        NOT NULL,
    kind               text        NOT NULL,
    due_within_seconds bigint      NOT NULL,
    backend            text        NOT NULL,
    left_out           bigint      NOT NULL,
    created_at         timestamptz NOT NULL,
    created_by         text        NOT NULL,
    expires_at         timestamptz,
    applied_at         timestamptz,
    applied_by         text        NOT NULL
);
CREATE INDEX sweeps_list ON sweeps (org_id, created_at DESC, id DESC);
CREATE INDEX sweeps_created ON sweeps (created_at);

CREATE TABLE sweep_items (
    sweep_id      uuid        NOT NULL REFERENCES sweeps (id) ON DELETE CASCADE,
    sandbox_id    uuid        NOT NULL,
    run_id        uuid        NOT NULL,
    automation_id uuid,
    backend       text        NOT NULL,
    due_at        timestamptz NOT NULL,
    size_bytes    bigint,
    outcome       text        NOT NULL,
    PRIMARY KEY (sweep_id, sandbox_id)
);
