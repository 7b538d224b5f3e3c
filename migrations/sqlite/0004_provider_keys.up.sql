-- Keys that a provider minted per user and organization. Sealed; minted_at is their age.
CREATE TABLE provider_keys (
    backend   TEXT      NOT NULL,
    org_id    TEXT      NOT NULL,
    user_id   TEXT      NOT NULL,
    sealed    TEXT      NOT NULL,
    minted_at TIMESTAMP NOT NULL,
    PRIMARY KEY (backend, org_id, user_id)
);
