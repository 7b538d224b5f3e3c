-- Times are UTC text in bun's layout, ids and JSON are text.

CREATE TABLE deployment (
    id TEXT NOT NULL PRIMARY KEY
);

-- The deployment label of every box: a random UUID, made once with the database.
INSERT INTO deployment (id)
SELECT lower(substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-4' || substr(h, 14, 3) || '-' ||
             substr('89ab', abs(random()) % 4 + 1, 1) || substr(h, 18, 3) || '-' || substr(h, 21, 12))
FROM (SELECT hex(randomblob(16)) AS h);

CREATE TABLE automations (
    id                         TEXT      NOT NULL PRIMARY KEY,
    user_id                    TEXT      NOT NULL,
    org_id                     TEXT      NOT NULL,
    name                       TEXT      NOT NULL,
    description                TEXT,
    prompt                     TEXT,
    preset_metadata            TEXT,
    plugin_spec                TEXT,
    trigger                    TEXT      NOT NULL,
    observability_associations TEXT,
    tags                       TEXT      NOT NULL,
    tarball_path               TEXT      NOT NULL,
    setup_script_path          TEXT,
    entrypoint                 TEXT      NOT NULL,
    timeout_seconds            INTEGER,
    keep_alive                 BOOLEAN,
    overlap                    TEXT      NOT NULL,
    state                      TEXT      NOT NULL,
    disabled_reason            TEXT,
    disabled_detail            TEXT,
    disabled_at                TIMESTAMP,
    model                      TEXT,
    agent_profile_id           TEXT,
    template_id                TEXT,
    last_triggered_at          TIMESTAMP,
    next_run_at                TIMESTAMP,
    created_at                 TIMESTAMP NOT NULL,
    updated_at                 TIMESTAMP NOT NULL,
    deleted_at                 TIMESTAMP
);
CREATE INDEX automations_list ON automations (org_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX automations_next_run ON automations (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE UNIQUE INDEX automations_template ON automations (org_id, template_id) WHERE template_id IS NOT NULL AND deleted_at IS NULL;

CREATE TABLE automation_runs (
    id                         TEXT      NOT NULL PRIMARY KEY,
    automation_id              TEXT      NOT NULL REFERENCES automations (id) ON DELETE CASCADE,
    org_id                     TEXT      NOT NULL,
    status                     TEXT      NOT NULL,
    trigger_source             TEXT,
    scheduled_for              TIMESTAMP,
    event_payload              TEXT,
    observability_associations TEXT,
    error_detail               TEXT,
    status_detail              TEXT,
    current_phase              TEXT,
    conversation_id            TEXT,
    cost                       REAL,
    run_metadata               TEXT,
    resolved_runtime           TEXT,
    box_id                     TEXT      REFERENCES sandboxes (id) ON DELETE SET NULL,
    attempt                    INTEGER   NOT NULL,
    bash_command_id            TEXT,
    starting_at                TIMESTAMP,
    check_at                   TIMESTAMP,
    exit_seen_at               TIMESTAMP,
    timeout_at                 TIMESTAMP,
    exit_code                  INTEGER,
    output_key                 TEXT,
    output_bytes               INTEGER,
    output_at                  TIMESTAMP,
    created_at                 TIMESTAMP NOT NULL,
    started_at                 TIMESTAMP,
    completed_at               TIMESTAMP
);
CREATE UNIQUE INDEX automation_runs_scheduled ON automation_runs (automation_id, scheduled_for);
CREATE INDEX automation_runs_by_automation ON automation_runs (automation_id, created_at DESC, id DESC);
CREATE INDEX automation_runs_list ON automation_runs (org_id, created_at DESC, id DESC);
CREATE INDEX automation_runs_active ON automation_runs (automation_id) WHERE status IN ('PENDING', 'RUNNING');
CREATE INDEX automation_runs_pending ON automation_runs (created_at, id) WHERE status = 'PENDING';
CREATE INDEX automation_runs_provisioning ON automation_runs (started_at) WHERE status = 'RUNNING' AND starting_at IS NULL;
CREATE INDEX automation_runs_check ON automation_runs (check_at) WHERE status = 'RUNNING';
CREATE INDEX automation_runs_timeout ON automation_runs (timeout_at) WHERE status = 'RUNNING';
CREATE INDEX automation_runs_box ON automation_runs (box_id) WHERE box_id IS NOT NULL;
CREATE INDEX automation_runs_output ON automation_runs (output_at) WHERE output_key IS NOT NULL;

CREATE TABLE sandboxes (
    id              TEXT      NOT NULL PRIMARY KEY,
    org_id          TEXT      NOT NULL,
    user_id         TEXT      NOT NULL,
    automation_id   TEXT      REFERENCES automations (id) ON DELETE SET NULL,
    run_id          TEXT      REFERENCES automation_runs (id) ON DELETE SET NULL,
    backend         TEXT      NOT NULL,
    location        TEXT      NOT NULL,
    created_by      TEXT      NOT NULL,
    desired         TEXT      NOT NULL,
    observed        TEXT      NOT NULL,
    generation      INTEGER   NOT NULL,
    ordered_at      TIMESTAMP NOT NULL,
    ordered_by      TEXT      NOT NULL,
    order_reason    TEXT      NOT NULL,
    next_step_at    TIMESTAMP,
    attempts        INTEGER   NOT NULL,
    last_error      TEXT,
    lease_token     TEXT,
    lease_until     TIMESTAMP,
    awake_epoch     INTEGER   NOT NULL,
    output_epoch    INTEGER   NOT NULL,
    reclaimed_epoch INTEGER   NOT NULL,
    exported_epoch  INTEGER   NOT NULL,
    tried           TEXT      NOT NULL,
    prepare_until   TIMESTAMP,
    observed_at     TIMESTAMP,
    answered_at     TIMESTAMP,
    searches        INTEGER   NOT NULL,
    export_tries    INTEGER   NOT NULL,
    export_tried_at TIMESTAMP,
    create_sent_at  TIMESTAMP,
    create_ended_at TIMESTAMP,
    url             TEXT      NOT NULL,
    session_key     TEXT      NOT NULL,
    last_access_at  TIMESTAMP,
    suspended_at    TIMESTAMP,
    expires_at      TIMESTAMP,
    deleted_at      TIMESTAMP,
    created_at      TIMESTAMP NOT NULL,
    kept_at         TIMESTAMP,
    kept_by         TEXT      NOT NULL,
    kept_reason     TEXT      NOT NULL,
    note            TEXT      NOT NULL,
    needs_attention TEXT      NOT NULL,
    reclaimed_bytes INTEGER   NOT NULL,
    storage         TEXT,
    storage_at      TIMESTAMP
);
CREATE INDEX sandboxes_list ON sandboxes (org_id, created_at DESC, id DESC);
CREATE INDEX sandboxes_next_step ON sandboxes (backend, location, next_step_at) WHERE next_step_at IS NOT NULL;
CREATE INDEX sandboxes_leased ON sandboxes (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX sandboxes_present ON sandboxes (backend, location) WHERE observed <> 'deleted';
CREATE INDEX sandboxes_attention ON sandboxes (org_id, created_at DESC) WHERE needs_attention <> '';
CREATE INDEX sandboxes_automation ON sandboxes (automation_id) WHERE desired <> 'deleted';
CREATE INDEX sandboxes_run ON sandboxes (run_id);

CREATE TABLE sandbox_identities (
    sandbox_id  TEXT      NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    kind        TEXT      NOT NULL,
    provider_id TEXT      NOT NULL,
    url         TEXT      NOT NULL,
    session_key TEXT      NOT NULL,
    seen_at     TIMESTAMP NOT NULL,
    gone_at     TIMESTAMP,
    PRIMARY KEY (sandbox_id, kind, provider_id)
);
CREATE INDEX sandbox_identities_provider ON sandbox_identities (provider_id);

CREATE TABLE sandbox_attachments (
    sandbox_id TEXT      NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    process    TEXT      NOT NULL,
    until      TIMESTAMP NOT NULL,
    PRIMARY KEY (sandbox_id, process)
);

-- No foreign keys: the timeline outlives box, run and automation.
CREATE TABLE sandbox_events (
    id            TEXT      NOT NULL PRIMARY KEY,
    at            TIMESTAMP NOT NULL,
    org_id        TEXT      NOT NULL,
    sandbox_id    TEXT,
    run_id        TEXT,
    automation_id TEXT,
    what          TEXT      NOT NULL,
    actor         TEXT      NOT NULL,
    reason        TEXT      NOT NULL,
    outcome       TEXT      NOT NULL,
    bytes         INTEGER   NOT NULL,
    duration_ms   INTEGER   NOT NULL,
    detail        TEXT
);
CREATE INDEX sandbox_events_box ON sandbox_events (sandbox_id, at, id);
CREATE INDEX sandbox_events_run ON sandbox_events (run_id, at) WHERE run_id IS NOT NULL;
CREATE INDEX sandbox_events_at ON sandbox_events (at);

CREATE TABLE uploads (
    id            TEXT      NOT NULL PRIMARY KEY,
    user_id       TEXT      NOT NULL,
    org_id        TEXT      NOT NULL,
    name          TEXT      NOT NULL,
    description   TEXT,
    status        TEXT      NOT NULL,
    error_message TEXT,
    size_bytes    INTEGER,
    blob_key      TEXT      NOT NULL,
    created_at    TIMESTAMP NOT NULL,
    updated_at    TIMESTAMP NOT NULL,
    deleted_at    TIMESTAMP
);
CREATE INDEX uploads_list ON uploads (org_id, user_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;
