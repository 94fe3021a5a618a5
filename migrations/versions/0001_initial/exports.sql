CREATE TABLE export_job (
    id UUID NOT NULL,
    model INTEGER NOT NULL,
    format TEXT COLLATE "C" NOT NULL,
    document JSONB NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    requested_by TEXT COLLATE "C" NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    listed_to UUID,
    members BIGINT DEFAULT 0 NOT NULL,
    lists BIGINT DEFAULT 0 NOT NULL,
    written BIGINT DEFAULT 0 NOT NULL,
    rows BIGINT DEFAULT 0 NOT NULL,
    bytes BIGINT DEFAULT 0 NOT NULL,
    gone BIGINT DEFAULT 0 NOT NULL,
    missing BIGINT DEFAULT 0 NOT NULL,
    parts_deleted BIGINT DEFAULT 0 NOT NULL,
    inferences_deleted BIGINT DEFAULT 0 NOT NULL,
    error TEXT COLLATE "C",
    retry_at TIMESTAMP WITH TIME ZONE,
    erased_by UUID,
    CONSTRAINT export_job_pkey PRIMARY KEY (id)
);

CREATE INDEX export_job_model_requested_at_idx ON export_job (model, requested_at);

CREATE INDEX export_job_requested_at_idx ON export_job (requested_at);

CREATE TABLE export_part (
    export UUID NOT NULL,
    number INTEGER NOT NULL,
    model INTEGER NOT NULL,
    first UUID NOT NULL,
    last UUID NOT NULL,
    uids BYTEA NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    storage_key TEXT COLLATE "C",
    rows BIGINT,
    bytes BIGINT,
    sha256 BYTEA,
    written_at TIMESTAMP WITH TIME ZONE,
    gone BIGINT DEFAULT 0 NOT NULL,
    missing BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT export_part_pkey PRIMARY KEY (export, number)
);

ALTER TABLE export_part ALTER COLUMN uids SET STORAGE EXTERNAL;

CREATE INDEX export_part_model_idx ON export_part (model, first, last);

CREATE TABLE export_download (
    export UUID NOT NULL,
    actor TEXT COLLATE "C" NOT NULL,
    first_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    last_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    parts BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT export_download_pkey PRIMARY KEY (export, actor)
);

CREATE TABLE export_erased (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    export UUID NOT NULL,
    part INTEGER NOT NULL,
    erasure UUID NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    inferences BIGINT NOT NULL,
    uids BYTEA,
    leaves BYTEA,
    hashed_by TEXT COLLATE "C",
    storage_key TEXT COLLATE "C",
    erased_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    deleted_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT export_erased_pkey PRIMARY KEY (id)
);

ALTER TABLE export_erased ALTER COLUMN leaves SET STORAGE EXTERNAL;

CREATE INDEX export_erased_erasure_idx ON export_erased (erasure);

CREATE INDEX export_erased_export_idx ON export_erased (export, id);
