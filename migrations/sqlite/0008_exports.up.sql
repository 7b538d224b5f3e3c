-- The exported histories of boxes. No foreign key to boxes: a row goes only after its blob has.
CREATE TABLE sandbox_exports (
    id            TEXT      NOT NULL PRIMARY KEY,
    sandbox_id    TEXT      NOT NULL,
    org_id        TEXT      NOT NULL,
    awake_epoch   INTEGER   NOT NULL,
    blob_key      TEXT      NOT NULL,
    begun_at      TIMESTAMP NOT NULL,
    taken_at      TIMESTAMP,
    obsolete_at   TIMESTAMP,
    bytes         INTEGER   NOT NULL,
    sha256        TEXT      NOT NULL,
    conversations TEXT      NOT NULL
);
CREATE INDEX sandbox_exports_box ON sandbox_exports (sandbox_id, taken_at);
CREATE INDEX sandbox_exports_taken ON sandbox_exports (taken_at) WHERE taken_at IS NOT NULL;
CREATE INDEX sandbox_exports_obsolete ON sandbox_exports (obsolete_at) WHERE obsolete_at IS NOT NULL;

-- What was marked as exported before there were exports says nothing.
UPDATE sandboxes SET exported_epoch = 0 WHERE exported_epoch > 0;
