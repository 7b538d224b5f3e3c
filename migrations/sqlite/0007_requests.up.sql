-- Requests that brought an Idempotency-Key, so that the same one sent again is answered and not done again. status 0: its answer
-- is not known (yet).
CREATE TABLE requests (
    org_id       TEXT      NOT NULL,
    user_id      TEXT      NOT NULL,
    key          TEXT      NOT NULL,
    fingerprint  TEXT      NOT NULL,
    begun_at     TIMESTAMP NOT NULL,
    status       INTEGER   NOT NULL,
    content_type TEXT      NOT NULL,
    answer       BLOB      NOT NULL,
    PRIMARY KEY (org_id, user_id, key)
);
CREATE INDEX requests_begun ON requests (begun_at);
