-- Keys that a provider minted per user and organization. Sealed; minted_at is their age.
CREATE TABLE provider_keys (
    backend   text        NOT NULL,
    org_id    uuid        NOT NULL,
    user_id   uuid        NOT NULL,
    sealed    text        NOT NULL,
    minted_at timestamptz NOT NULL,
    PRIMARY KEY (backend, org_id, user_id)
);
