-- Conversations with a box of their own. What a person cannot make again is here and outlives the box: whose it is, the
-- checkout it works on, and its keys (sealed).
CREATE TABLE runtimes (
    org_id          TEXT      NOT NULL,
    conversation_id TEXT      NOT NULL,
    user_id         TEXT      NOT NULL,
    backend         TEXT      NOT NULL,
    location        TEXT      NOT NULL,
    workspace       TEXT      NOT NULL,
    session_key     TEXT      NOT NULL,
    secret_key      TEXT      NOT NULL,
    box_id          TEXT      REFERENCES sandboxes (id) ON DELETE SET NULL,
    created_at      TIMESTAMP NOT NULL,
    PRIMARY KEY (org_id, conversation_id)
);
CREATE UNIQUE INDEX runtimes_workspace ON runtimes (backend, location, workspace) WHERE workspace <> '';
CREATE INDEX runtimes_box ON runtimes (box_id);
CREATE INDEX runtimes_list ON runtimes (org_id, created_at DESC, conversation_id);
-- Why an idle box was last left awake; '' for no reason.
ALTER TABLE sandboxes ADD COLUMN held_because TEXT NOT NULL DEFAULT '';
-- An attachment holds one start of its box and none after it. Rows of a process that knows nothing of starts hold every one.
ALTER TABLE sandbox_attachments ADD COLUMN awake_epoch INTEGER NOT NULL DEFAULT 9223372036854775807;
-- When the idle duty looks at an awake box next; NULL: when nobody has accessed it for long enough.
ALTER TABLE sandboxes ADD COLUMN idle_check_at TIMESTAMP;
CREATE INDEX sandboxes_awake ON sandboxes (backend, location, last_access_at) WHERE observed = 'running' AND next_step_at IS NULL;
