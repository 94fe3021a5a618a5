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
    ok BOOLEAN,
    http_status INTEGER,
    grpc_code INTEGER,
    error TEXT COLLATE "C",
    trace_id TEXT COLLATE "C",
    model_version TEXT COLLATE "C",
    task_type TEXT COLLATE "C",
    protocol TEXT COLLATE "C",
    action TEXT COLLATE "C",
    batch_index INTEGER,
    batch_size INTEGER,
    data_hash TEXT COLLATE "C",
    data_size BIGINT,
    data_content_type TEXT COLLATE "C",
    width INTEGER,
    height INTEGER,
    top_label INTEGER,
    top_score DOUBLE PRECISION,
    prediction_count INTEGER,
    flags TEXT[] COLLATE "C" DEFAULT '{}' NOT NULL,
    problem TEXT COLLATE "C",
    metadata BYTEA,
    revision INTEGER DEFAULT 1 NOT NULL,
    data_deleted_at TIMESTAMP WITH TIME ZONE,
    sidecar_storage_key TEXT COLLATE "C",
    response_deleted_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT inference_pkey PRIMARY KEY (model, uid)
) PARTITION BY RANGE (uid);

CREATE INDEX inference_indexed_at_idx ON inference USING brin (indexed_at)
    WITH (autosummarize = on, pages_per_range = 32);

CREATE INDEX inference_input_kept_idx ON inference (model, uid) WHERE data_deleted_at IS NULL;

CREATE INDEX inference_model_data_hash_idx ON inference (model, data_hash, uid) WHERE data_hash IS NOT NULL;

CREATE INDEX inference_model_inference_id_idx ON inference (model, inference_id, uid);

CREATE INDEX inference_outcome_idx ON inference (model, uid)
    INCLUDE (ok, top_label, top_score, prediction_count);

CREATE TABLE inference_alias (
    model INTEGER NOT NULL,
    alias TEXT COLLATE "C" NOT NULL,
    uid UUID NOT NULL,
    CONSTRAINT inference_alias_pkey PRIMARY KEY (model, alias, uid)
) PARTITION BY RANGE (uid);

CREATE INDEX inference_alias_model_uid_idx ON inference_alias (model, uid);

CREATE TABLE metadata_number (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    value NUMERIC NOT NULL,
    uid UUID NOT NULL,
    CONSTRAINT metadata_number_pkey PRIMARY KEY (model, key, value, uid)
) PARTITION BY RANGE (uid);

CREATE INDEX metadata_number_model_uid_idx ON metadata_number (model, uid);

CREATE TABLE metadata_string (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    uid UUID NOT NULL,
    whole TEXT COLLATE "C",
    CONSTRAINT metadata_string_pkey PRIMARY KEY (model, key, value, uid)
) PARTITION BY RANGE (uid);

CREATE INDEX metadata_string_model_uid_idx ON metadata_string (model, uid);

CREATE TABLE metadata_bool (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    value BOOLEAN NOT NULL,
    uid UUID NOT NULL,
    CONSTRAINT metadata_bool_pkey PRIMARY KEY (model, key, value, uid)
) PARTITION BY RANGE (uid);

CREATE INDEX metadata_bool_model_uid_idx ON metadata_bool (model, uid);

CREATE TABLE metadata_timestamp (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    value TIMESTAMP WITH TIME ZONE NOT NULL,
    uid UUID NOT NULL,
    CONSTRAINT metadata_timestamp_pkey PRIMARY KEY (model, key, value, uid)
) PARTITION BY RANGE (uid);

CREATE INDEX metadata_timestamp_model_uid_idx ON metadata_timestamp (model, uid);

CREATE TABLE metadata_presence (
    model INTEGER NOT NULL,
    key INTEGER NOT NULL,
    uid UUID NOT NULL,
    is_null BOOLEAN NOT NULL,
    CONSTRAINT metadata_presence_pkey PRIMARY KEY (model, key, uid)
) PARTITION BY RANGE (uid);

CREATE INDEX metadata_presence_model_uid_idx ON metadata_presence (model, uid);

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
) PARTITION BY RANGE (uid);

CREATE INDEX prediction_model_label_score_idx ON prediction (model, label, score, uid);

CREATE TABLE blob_reference (
    storage_key TEXT COLLATE "C" NOT NULL,
    model INTEGER NOT NULL,
    uid UUID NOT NULL,
    CONSTRAINT blob_reference_pkey PRIMARY KEY (storage_key, model, uid)
);

CREATE INDEX blob_reference_model_uid_idx ON blob_reference (model, uid);
