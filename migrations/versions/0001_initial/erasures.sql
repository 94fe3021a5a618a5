CREATE TABLE erasure (
    id UUID NOT NULL,
    model INTEGER,
    cause TEXT COLLATE "C" NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    run UUID,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    inferences BIGINT DEFAULT 0 NOT NULL,
    objects BIGINT DEFAULT 0 NOT NULL,
    error TEXT COLLATE "C",
    asked JSONB,
    requested_by TEXT COLLATE "C",
    begun_at TIMESTAMP WITH TIME ZONE,
    deleting_since TIMESTAMP WITH TIME ZONE,
    retry_at TIMESTAMP WITH TIME ZONE,
    marked BIGINT DEFAULT 0 NOT NULL,
    held BIGINT DEFAULT 0 NOT NULL,
    versions BIGINT DEFAULT 0 NOT NULL,
    bytes BIGINT DEFAULT 0 NOT NULL,
    table_rows JSONB DEFAULT '{}' NOT NULL,
    oldest TIMESTAMP WITH TIME ZONE,
    newest TIMESTAMP WITH TIME ZONE,
    certificate BIGINT,
    decided_by JSONB DEFAULT '[]' NOT NULL,
    in_force_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    given_up JSONB,
    CONSTRAINT erasure_pkey PRIMARY KEY (id)
);

CREATE INDEX erasure_model_requested_at_idx ON erasure (model, requested_at);

CREATE INDEX erasure_state_idx ON erasure (state);

CREATE TABLE erasure_model (
    erasure UUID NOT NULL,
    model INTEGER NOT NULL,
    marked BIGINT DEFAULT 0 NOT NULL,
    erased BIGINT DEFAULT 0 NOT NULL,
    marked_to UUID,
    marked_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT erasure_model_pkey PRIMARY KEY (erasure, model)
);

CREATE INDEX erasure_model_model_idx ON erasure_model (model, erasure);

CREATE TABLE erasure_obstacle (
    erasure UUID NOT NULL,
    storage_key TEXT COLLATE "C" NOT NULL,
    code TEXT COLLATE "C" NOT NULL,
    message TEXT COLLATE "C" NOT NULL,
    retry_at TIMESTAMP WITH TIME ZONE,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT erasure_obstacle_pkey PRIMARY KEY (erasure, storage_key)
);

CREATE TABLE erasure_held (
    erasure UUID NOT NULL,
    model INTEGER NOT NULL,
    uid UUID NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    hold UUID NOT NULL,
    hold_revision INTEGER NOT NULL,
    data_storage_key TEXT COLLATE "C",
    response_storage_key TEXT COLLATE "C",
    metadata_storage_key TEXT COLLATE "C",
    sidecar_storage_key TEXT COLLATE "C",
    claimed_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT erasure_held_pkey PRIMARY KEY (erasure, model, uid, scope)
);

CREATE INDEX erasure_held_data_idx ON erasure_held (data_storage_key);

CREATE INDEX erasure_held_hold_idx ON erasure_held (hold, hold_revision);

CREATE INDEX erasure_held_metadata_idx ON erasure_held (metadata_storage_key);

CREATE INDEX erasure_held_response_idx ON erasure_held (response_storage_key);

CREATE INDEX erasure_held_sidecar_idx ON erasure_held (sidecar_storage_key);

CREATE TABLE erasing (
    model INTEGER NOT NULL,
    uid UUID NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    erasure UUID NOT NULL,
    data_storage_key TEXT COLLATE "C",
    response_storage_key TEXT COLLATE "C",
    metadata_storage_key TEXT COLLATE "C",
    sidecar_storage_key TEXT COLLATE "C",
    claimed_at TIMESTAMP WITH TIME ZONE,
    erased_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT erasing_pkey PRIMARY KEY (model, uid, scope, erasure)
) WITH (
    -- a row is written again when its objects are claimed, and is dead soon after
    fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000
);

CREATE INDEX erasing_erasure_idx ON erasing (
    erasure, model, coalesce(data_storage_key, response_storage_key, metadata_storage_key, ''), uid
);

CREATE TABLE erasing_object (
    storage_key TEXT COLLATE "C" NOT NULL,
    erasure UUID NOT NULL,
    claimed_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT erasing_object_pkey PRIMARY KEY (storage_key)
);

CREATE INDEX erasing_object_erasure_idx ON erasing_object (erasure, storage_key);

CREATE TABLE tombstone (
    model INTEGER NOT NULL,
    uid UUID NOT NULL,
    erased_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT tombstone_pkey PRIMARY KEY (model, uid)
);

CREATE INDEX tombstone_erased_at_idx ON tombstone (erased_at);

CREATE TABLE erased_span (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    model INTEGER NOT NULL,
    lo TIMESTAMP WITH TIME ZONE NOT NULL,
    hi TIMESTAMP WITH TIME ZONE NOT NULL,
    erased_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT erased_span_pkey PRIMARY KEY (id)
);

CREATE UNIQUE INDEX erased_span_model_lo_key ON erased_span (model, lo, hi);

CREATE TABLE erased_batch (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    model INTEGER NOT NULL,
    first UUID NOT NULL,
    last UUID NOT NULL,
    uids BYTEA NOT NULL,
    erased_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT erased_batch_pkey PRIMARY KEY (id)
);

CREATE INDEX erased_batch_erased_at_idx ON erased_batch (erased_at);

CREATE INDEX erased_batch_model_first_idx ON erased_batch (model, first);

CREATE TABLE erased_total (
    id INTEGER NOT NULL,
    inferences BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT erased_total_pkey PRIMARY KEY (id)
);

INSERT INTO erased_total (id) VALUES (1);
