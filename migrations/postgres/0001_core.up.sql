CREATE TABLE deployment (
    id uuid NOT NULL PRIMARY KEY
);

-- The deployment label of every box: a random UUID, made once with the database.
INSERT INTO deployment (id) VALUES (gen_random_uuid());

CREATE TABLE automations (
    id                         uuid        NOT NULL PRIMARY KEY,
    user_id                    uuid        NOT NULL,
    org_id                     uuid        NOT NULL,
    name                       text        NOT NULL,
    description                text,
    prompt                     text,
    preset_metadata            jsonb,
    plugin_spec                jsonb,
    trigger                    jsonb       NOT NULL,
    observability_associations jsonb,
    tags                       jsonb       NOT NULL,
    tarball_path               text        NOT NULL,
    setup_script_path          text,
    entrypoint                 text        NOT NULL,
    timeout_seconds            bigint,
    keep_alive                 boolean,
    overlap                    text        NOT NULL,
    state                      text        NOT NULL,
    disabled_reason            text,
    disabled_detail            jsonb,
    disabled_at                timestamptz,
    model                      text,
    agent_profile_id           uuid,
    template_id                text,
    last_triggered_at          timestamptz,
    next_run_at                timestamptz,
    created_at                 timestamptz NOT NULL,
    updated_at                 timestamptz NOT NULL,
    deleted_at                 timestamptz
);
CREATE INDEX automations_list ON automations (org_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX automations_next_run ON automations (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE UNIQUE INDEX automations_template ON automations (org_id, template_id) WHERE template_id IS NOT NULL AND deleted_at IS NULL;

CREATE TABLE automation_runs (
    id                         uuid             NOT NULL PRIMARY KEY,
    automation_id              uuid             NOT NULL REFERENCES automations (id) ON DELETE CASCADE,
    org_id                     uuid             NOT NULL,
    status                     text             NOT NULL,
    trigger_source             text,
    scheduled_for              timestamptz,
    event_payload              jsonb,
    observability_associations jsonb,
    error_detail               text,
    status_detail              jsonb,
    current_phase              text,
    conversation_id            text,
    cost                       double precision,
    run_metadata               jsonb,
    resolved_runtime           jsonb,
    box_id                     uuid,
    attempt                    bigint           NOT NULL,
    bash_command_id            text,
    starting_at                timestamptz,
    check_at                   timestamptz,
    exit_seen_at               timestamptz,
    timeout_at                 timestamptz,
    exit_code                  bigint,
    output_key                 text,
    output_bytes               bigint,
    output_at                  timestamptz,
    created_at                 timestamptz      NOT NULL,
    started_at                 timestamptz,
    completed_at               timestamptz
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
    id              uuid        NOT NULL PRIMARY KEY,
    org_id          uuid        NOT NULL,
    user_id         uuid        NOT NULL,
    automation_id   uuid        REFERENCES automations (id) ON DELETE SET NULL,
    run_id          uuid        REFERENCES automation_runs (id) ON DELETE SET NULL,
    backend         text        NOT NULL,
    location        text        NOT NULL,
    created_by      text        NOT NULL,
    desired         text        NOT NULL,
    observed        text        NOT NULL,
    generation      bigint      NOT NULL,
    ordered_at      timestamptz NOT NULL,
    ordered_by      text        NOT NULL,
    order_reason    text        NOT NULL,
    next_step_at    timestamptz,
    attempts        bigint      NOT NULL,
    last_error      text,
    lease_token     uuid,
    lease_until     timestamptz,
    awake_epoch     bigint      NOT NULL,
    output_epoch    bigint      NOT NULL,
    reclaimed_epoch bigint      NOT NULL,
    exported_epoch  bigint      NOT NULL,
    tried           jsonb       NOT NULL,
    prepare_until   timestamptz,
    observed_at     timestamptz,
    answered_at     timestamptz,
    searches        bigint      NOT NULL,
    export_tries    bigint      NOT NULL,
    export_tried_at timestamptz,
    create_sent_at  timestamptz,
    create_ended_at timestamptz,
    url             text        NOT NULL,
    session_key     text        NOT NULL,
    last_access_at  timestamptz,
    suspended_at    timestamptz,
    expires_at      timestamptz,
    deleted_at      timestamptz,
    created_at      timestamptz NOT NULL,
    kept_at         timestamptz,
    kept_by         text        NOT NULL,
    kept_reason     text        NOT NULL,
    note            text        NOT NULL,
    needs_attention text        NOT NULL,
    reclaimed_bytes bigint      NOT NULL,
    storage         jsonb,
    storage_at      timestamptz
);
-- Run and box point to each other: this side comes once both tables exist.
ALTER TABLE automation_runs ADD FOREIGN KEY (box_id) REFERENCES sandboxes (id) ON DELETE SET NULL;

CREATE INDEX sandboxes_list ON sandboxes (org_id, created_at DESC, id DESC);
CREATE INDEX sandboxes_next_step ON sandboxes (backend, location, next_step_at) WHERE next_step_at IS NOT NULL;
CREATE INDEX sandboxes_leased ON sandboxes (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX sandboxes_present ON sandboxes (backend, location) WHERE observed <> 'deleted';
CREATE INDEX sandboxes_attention ON sandboxes (org_id, created_at DESC) WHERE needs_attention <> '';
CREATE INDEX sandboxes_automation ON sandboxes (automation_id) WHERE desired <> 'deleted';
CREATE INDEX sandboxes_run ON sandboxes (run_id);

CREATE TABLE sandbox_identities (
    sandbox_id  uuid        NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    kind        text        NOT NULL,
    provider_id text        NOT NULL,
    url         text        NOT NULL,
    session_key text        NOT NULL,
    seen_at     timestamptz NOT NULL,
    gone_at     timestamptz,
    PRIMARY KEY (sandbox_id, kind, provider_id)
);
CREATE INDEX sandbox_identities_provider ON sandbox_identities (provider_id);

CREATE TABLE sandbox_attachments (
    sandbox_id uuid        NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    process    uuid        NOT NULL,
    until      timestamptz NOT NULL,
    PRIMARY KEY (sandbox_id, process)
);

-- No foreign keys: the timeline outlives box, run and automation.
CREATE TABLE sandbox_events (
    id            uuid        NOT NULL PRIMARY KEY,
    at            timestamptz NOT NULL,
    org_id        uuid        NOT NULL,
    sandbox_id    uuid,
    run_id        uuid,
    automation_id uuid,
    what          text        NOT NULL,
    actor         text        NOT NULL,
    reason        text        NOT NULL,
    outcome       text        NOT NULL,
    bytes         bigint      NOT NULL,
    duration_ms   bigint      NOT NULL,
    detail        jsonb
);
CREATE INDEX sandbox_events_box ON sandbox_events (sandbox_id, at, id);
CREATE INDEX sandbox_events_run ON sandbox_events (run_id, at) WHERE run_id IS NOT NULL;
CREATE INDEX sandbox_events_at ON sandbox_events (at);

CREATE TABLE uploads (
    id            uuid        NOT NULL PRIMARY KEY,
    user_id       uuid        NOT NULL,
    org_id        uuid        NOT NULL,
    name          text        NOT NULL,
    description   text,
    status        text        NOT NULL,
    error_message text,
    size_bytes    bigint,
    blob_key      text        NOT NULL,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    deleted_at    timestamptz
);
CREATE INDEX uploads_list ON uploads (org_id, user_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;
