-- No foreign keys to boxes and runs: the history of sweeps outlives them.
CREATE TABLE sweeps (
    id                 TEXT      NOT NULL PRIMARY KEY,
    org_id             TEXT      NOT NULL,
    kind               TEXT      NOT NULL,
    due_within_seconds INTEGER   NOT NULL,
    backend            TEXT      NOT NULL,
    left_out           INTEGER   NOT NULL,
    created_at         TIMESTAMP NOT NULL,
    created_by         TEXT      NOT NULL,
    expires_at         TIMESTAMP,
    applied_at         TIMESTAMP,
    applied_by         TEXT      NOT NULL
);
CREATE INDEX sweeps_list ON sweeps (org_id, created_at DESC, id DESC);
CREATE INDEX sweeps_created ON sweeps (created_at);

CREATE TABLE sweep_items (
    sweep_id      TEXT      NOT NULL REFERENCES sweeps (id) ON DELETE CASCADE,
    sandbox_id    TEXT      NOT NULL,
    run_id        TEXT      NOT NULL,
    automation_id TEXT,
    backend       TEXT      NOT NULL,
    due_at        TIMESTAMP NOT NULL,
    size_bytes    INTEGER,
    outcome       TEXT      NOT NULL,
    PRIMARY KEY (sweep_id, sandbox_id)
);
