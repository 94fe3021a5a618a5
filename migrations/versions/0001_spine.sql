CREATE TABLE audit (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    actor TEXT COLLATE "C" NOT NULL,
    action TEXT COLLATE "C" NOT NULL,
    model INTEGER,
    uid UUID,
    detail JSONB DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT audit_pkey PRIMARY KEY (id)
);

CREATE TABLE blob_reference (
    storage_key TEXT COLLATE "C" NOT NULL,
    model INTEGER NOT NULL,
    uid UUID NOT NULL,
    CONSTRAINT blob_reference_pkey PRIMARY KEY (storage_key, model, uid)
);

CREATE INDEX blob_reference_model_uid_idx ON blob_reference (model, uid);

CREATE TABLE erased_span (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    model INTEGER NOT NULL,
    lo TIMESTAMP WITH TIME ZONE NOT NULL,
    hi TIMESTAMP WITH TIME ZONE NOT NULL,
    erased_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT erased_span_pkey PRIMARY KEY (id)
);

CREATE UNIQUE INDEX erased_span_model_lo_key ON erased_span (model, lo, hi);

CREATE TABLE erasing (
    model INTEGER NOT NULL,
    uid UUID NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    erasure UUID NOT NULL,
    data_storage_key TEXT COLLATE "C",
    response_storage_key TEXT COLLATE "C",
    metadata_storage_key TEXT COLLATE "C",
    CONSTRAINT erasing_pkey PRIMARY KEY (model, uid, scope)
);

CREATE INDEX erasing_erasure_idx ON erasing (erasure);

CREATE TABLE erasure (
    id UUID NOT NULL,
    model INTEGER NOT NULL,
    cause TEXT COLLATE "C" NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    run UUID,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    inferences BIGINT DEFAULT 0 NOT NULL,
    objects BIGINT DEFAULT 0 NOT NULL,
    error TEXT COLLATE "C",
    CONSTRAINT erasure_pkey PRIMARY KEY (id)
);

CREATE INDEX erasure_model_requested_at_idx ON erasure (model, requested_at);

CREATE INDEX erasure_state_idx ON erasure (state);

CREATE TABLE former_model (
    model_id TEXT COLLATE "C" NOT NULL,
    model INTEGER NOT NULL,
    CONSTRAINT former_model_pkey PRIMARY KEY (model_id)
);

CREATE TABLE inference (
    model INTEGER NOT NULL,
    uid UUID NOT NULL,
    inference_id TEXT COLLATE "C" NOT NULL,
    received_at TIMESTAMP WITH TIME ZONE NOT NULL,
    forwarded_at TIMESTAMP WITH TIME ZONE,
    responded_at TIMESTAMP WITH TIME ZONE,
    published_at TIMESTAMP WITH TIME ZONE,
    indexed_at TIMESTAMP WITH TIME ZONE,
    data_storage_key TEXT COLLATE "C",
    response_storage_key TEXT COLLATE "C",
    metadata_storage_key TEXT COLLATE "C",
    capture_id UUID,
    model_version TEXT COLLATE "C",
    task_type TEXT COLLATE "C",
    protocol TEXT COLLATE "C",
    action TEXT COLLATE "C",
    ok BOOLEAN,
    http_status INTEGER,
    grpc_code INTEGER,
    error TEXT COLLATE "C",
    trace_id TEXT COLLATE "C",
    data_hash TEXT COLLATE "C",
    data_size BIGINT,
    data_content_type TEXT COLLATE "C",
    width INTEGER,
    height INTEGER,
    batch_index INTEGER,
    batch_size INTEGER,
    top_label INTEGER,
    top_score DOUBLE PRECISION,
    prediction_count INTEGER,
    flags TEXT[] COLLATE "C" DEFAULT '{}' NOT NULL,
    problem TEXT COLLATE "C",
    metadata BYTEA,
    revision INTEGER DEFAULT 1 NOT NULL,
    data_deleted_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT inference_pkey PRIMARY KEY (model, uid)
)
 PARTITION BY RANGE (uid);

CREATE INDEX inference_input_kept_idx ON inference (model, uid) WHERE data_deleted_at IS NULL;

CREATE INDEX inference_model_data_hash_idx ON inference (model, data_hash, uid) WHERE data_hash IS NOT NULL;

CREATE INDEX inference_model_inference_id_idx ON inference (model, inference_id, uid);

CREATE TABLE inference_alias (
    model INTEGER NOT NULL,
    alias TEXT COLLATE "C" NOT NULL,
    uid UUID NOT NULL,
    CONSTRAINT inference_alias_pkey PRIMARY KEY (model, alias, uid)
)
 PARTITION BY RANGE (uid);

CREATE INDEX inference_alias_model_uid_idx ON inference_alias (model, uid);

CREATE TABLE kafka_partition (
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    first BIGINT NOT NULL,
    next BIGINT NOT NULL,
    last_offset BIGINT,
    last_hash BYTEA,
    stored BIGINT DEFAULT 0 NOT NULL,
    duplicate BIGINT DEFAULT 0 NOT NULL,
    dead BIGINT DEFAULT 0 NOT NULL,
    parked BIGINT DEFAULT 0 NOT NULL,
    expired BIGINT DEFAULT 0 NOT NULL,
    erased_again BIGINT DEFAULT 0 NOT NULL,
    lost BIGINT DEFAULT 0 NOT NULL,
    not_delivered BIGINT DEFAULT 0 NOT NULL,
    began TEXT COLLATE "C" DEFAULT 'first' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT kafka_partition_pkey PRIMARY KEY (cluster, topic, epoch, partition)
);

CREATE TABLE label (
    label INTEGER GENERATED ALWAYS AS IDENTITY,
    name TEXT COLLATE "C" NOT NULL,
    CONSTRAINT label_pkey PRIMARY KEY (label),
    CONSTRAINT label_name_key UNIQUE (name)
);

CREATE TABLE lost_offsets (
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    lo BIGINT NOT NULL,
    hi BIGINT NOT NULL,
    noticed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT lost_offsets_pkey PRIMARY KEY (cluster, topic, epoch, partition, lo)
);

CREATE TABLE metadata_bool (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    value BOOLEAN NOT NULL,
    uid UUID NOT NULL,
    CONSTRAINT metadata_bool_pkey PRIMARY KEY (model, key, value, uid)
)
 PARTITION BY RANGE (uid);

CREATE INDEX metadata_bool_model_uid_idx ON metadata_bool (model, uid);

CREATE TABLE metadata_key (
    key INTEGER GENERATED ALWAYS AS IDENTITY,
    name TEXT COLLATE "C" NOT NULL,
    CONSTRAINT metadata_key_pkey PRIMARY KEY (key),
    CONSTRAINT metadata_key_name_key UNIQUE (name)
);

CREATE TABLE metadata_key_delta (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    type TEXT COLLATE "C" NOT NULL,
    flag TEXT COLLATE "C" NOT NULL,
    count BIGINT NOT NULL,
    first_seen TIMESTAMP WITH TIME ZONE NOT NULL,
    last_seen TIMESTAMP WITH TIME ZONE NOT NULL,
    examples JSONB DEFAULT '[]'::jsonb NOT NULL,
    CONSTRAINT metadata_key_delta_pkey PRIMARY KEY (id)
);

CREATE INDEX metadata_key_delta_model_key_idx ON metadata_key_delta (model, key);

CREATE TABLE metadata_key_seen (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    type TEXT COLLATE "C" NOT NULL,
    flag TEXT COLLATE "C" NOT NULL,
    count BIGINT NOT NULL,
    first_seen TIMESTAMP WITH TIME ZONE NOT NULL,
    last_seen TIMESTAMP WITH TIME ZONE NOT NULL,
    examples JSONB DEFAULT '[]'::jsonb NOT NULL,
    CONSTRAINT metadata_key_seen_pkey PRIMARY KEY (model, key, type, flag)
);

CREATE TABLE metadata_number (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    value NUMERIC NOT NULL,
    uid UUID NOT NULL,
    CONSTRAINT metadata_number_pkey PRIMARY KEY (model, key, value, uid)
)
 PARTITION BY RANGE (uid);

CREATE INDEX metadata_number_model_uid_idx ON metadata_number (model, uid);

CREATE TABLE metadata_presence (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    uid UUID NOT NULL,
    is_null BOOLEAN NOT NULL,
    CONSTRAINT metadata_presence_pkey PRIMARY KEY (model, key, uid)
)
 PARTITION BY RANGE (uid);

CREATE INDEX metadata_presence_model_uid_idx ON metadata_presence (model, uid);

CREATE TABLE metadata_string (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    uid UUID NOT NULL,
    whole TEXT COLLATE "C",
    CONSTRAINT metadata_string_pkey PRIMARY KEY (model, key, value, uid)
)
 PARTITION BY RANGE (uid);

CREATE INDEX metadata_string_model_uid_idx ON metadata_string (model, uid);

CREATE TABLE metadata_timestamp (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    value TIMESTAMP WITH TIME ZONE NOT NULL,
    uid UUID NOT NULL,
    CONSTRAINT metadata_timestamp_pkey PRIMARY KEY (model, key, value, uid)
)
 PARTITION BY RANGE (uid);

CREATE INDEX metadata_timestamp_model_uid_idx ON metadata_timestamp (model, uid);

CREATE TABLE model_key (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    CONSTRAINT model_key_pkey PRIMARY KEY (model, key)
);

CREATE TABLE model_label (
    model INTEGER NOT NULL,
    label INTEGER NOT NULL,
    CONSTRAINT model_label_pkey PRIMARY KEY (model, label)
);

CREATE TABLE partition_span (
    name TEXT COLLATE "C" NOT NULL,
    lo TIMESTAMP WITH TIME ZONE NOT NULL,
    hi TIMESTAMP WITH TIME ZONE NOT NULL,
    state TEXT COLLATE "C" DEFAULT 'open' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    analysed_rows BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT partition_span_pkey PRIMARY KEY (name),
    CONSTRAINT partition_span_lo_key UNIQUE (lo),
    CONSTRAINT partition_span_hi_key UNIQUE (hi)
);

CREATE TABLE prediction (
    model INTEGER NOT NULL,
    uid UUID NOT NULL,
    ordinal INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    output INTEGER NOT NULL,
    output_name TEXT COLLATE "C",
    label INTEGER,
    score DOUBLE PRECISION,
    box_xmin DOUBLE PRECISION,
    box_ymin DOUBLE PRECISION,
    box_xmax DOUBLE PRECISION,
    box_ymax DOUBLE PRECISION,
    area DOUBLE PRECISION,
    cx DOUBLE PRECISION,
    cy DOUBLE PRECISION,
    w DOUBLE PRECISION,
    h DOUBLE PRECISION,
    angle DOUBLE PRECISION,
    prompt TEXT COLLATE "C",
    answer TEXT COLLATE "C",
    text TEXT COLLATE "C",
    start INTEGER,
    "end" INTEGER,
    value NUMERIC,
    CONSTRAINT prediction_pkey PRIMARY KEY (model, uid, ordinal)
)
 PARTITION BY RANGE (uid);

CREATE INDEX prediction_model_label_score_idx ON prediction (model, label, score, uid);

CREATE TABLE producer_sequence (
    producer TEXT COLLATE "C" NOT NULL,
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    block BIGINT NOT NULL,
    covered INT8MULTIRANGE NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT producer_sequence_pkey PRIMARY KEY (producer, cluster, topic, epoch, partition, block)
);

CREATE TABLE registration (
    model INTEGER GENERATED BY DEFAULT AS IDENTITY,
    model_id TEXT COLLATE "C" NOT NULL,
    project_id TEXT COLLATE "C",
    name TEXT COLLATE "C",
    task_type TEXT COLLATE "C",
    class_labels JSONB DEFAULT '[]'::jsonb NOT NULL,
    output_mapping JSONB,
    registered_by TEXT COLLATE "C" NOT NULL,
    revision INTEGER DEFAULT 1 NOT NULL,
    registered_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT registration_pkey PRIMARY KEY (model),
    CONSTRAINT registration_model_id_key UNIQUE (model_id)
);

CREATE TABLE retention_policy (
    model INTEGER NOT NULL,
    rules JSONB NOT NULL,
    revision INTEGER DEFAULT 1 NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT retention_policy_pkey PRIMARY KEY (model)
);

CREATE TABLE retention_run (
    id UUID NOT NULL,
    model INTEGER,
    cause TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    inputs_deleted BIGINT DEFAULT 0 NOT NULL,
    inferences_deleted BIGINT DEFAULT 0 NOT NULL,
    partitions_dropped INTEGER DEFAULT 0 NOT NULL,
    error TEXT COLLATE "C",
    CONSTRAINT retention_run_pkey PRIMARY KEY (id)
);

CREATE INDEX retention_run_requested_at_idx ON retention_run (requested_at);

CREATE TABLE tombstone (
    model INTEGER NOT NULL,
    uid UUID NOT NULL,
    erased_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT tombstone_pkey PRIMARY KEY (model, uid)
);

CREATE INDEX tombstone_erased_at_idx ON tombstone (erased_at);

CREATE TABLE dead_letter (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    "offset" BIGINT NOT NULL,
    record_time TIMESTAMP WITH TIME ZONE NOT NULL,
    record_key BYTEA,
    payload BYTEA,
    headers JSONB DEFAULT '[]'::jsonb NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    detail TEXT COLLATE "C" NOT NULL,
    model_id TEXT COLLATE "C",
    inference_id TEXT COLLATE "C",
    attempts INTEGER DEFAULT 0 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    state TEXT COLLATE "C" DEFAULT 'open' NOT NULL,
    discard_reason TEXT COLLATE "C",
    CONSTRAINT dead_letter_pkey PRIMARY KEY (id),
    CONSTRAINT dead_letter_kafka_partition_fkey FOREIGN KEY(cluster, topic, epoch, partition) REFERENCES kafka_partition (cluster, topic, epoch, partition)
);

CREATE INDEX dead_letter_created_at_idx ON dead_letter (created_at);

CREATE UNIQUE INDEX dead_letter_place_key ON dead_letter (cluster, topic, epoch, partition, "offset");

CREATE INDEX dead_letter_state_id_idx ON dead_letter (state, id);

CREATE TABLE parked_event (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    "offset" BIGINT NOT NULL,
    record_time TIMESTAMP WITH TIME ZONE NOT NULL,
    record_key BYTEA,
    payload BYTEA,
    headers JSONB DEFAULT '[]'::jsonb NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    detail TEXT COLLATE "C" NOT NULL,
    model_id TEXT COLLATE "C",
    inference_id TEXT COLLATE "C",
    attempts INTEGER DEFAULT 0 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    missing TEXT COLLATE "C" NOT NULL,
    next_attempt_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT parked_event_pkey PRIMARY KEY (id),
    CONSTRAINT parked_event_kafka_partition_fkey FOREIGN KEY(cluster, topic, epoch, partition) REFERENCES kafka_partition (cluster, topic, epoch, partition)
);

CREATE INDEX parked_event_next_attempt_at_idx ON parked_event (next_attempt_at);

CREATE UNIQUE INDEX parked_event_place_key ON parked_event (cluster, topic, epoch, partition, "offset");
