-- Requests that brought an Idempotency-Key, so that the same one sent again is answered and not done again. status 0: its answer
-- is not known (yet).
CREATE TABLE requests (
    org_id       uuid        NOT NULL,
    user_id      uuid        NOT NULL,
    key          text        NOT NULL,
    fingerprint  text        NOT NULL,
    begun_at     timestamptz NOT NULL,
    status       bigint      NOT NULL,
    content_type text        NOT NULL,
    answer       bytea       NOT NULL,
    PRIMARY KEY (org_id, user_id, key)
);
CREATE INDEX requests_begun ON requests (begun_at);
