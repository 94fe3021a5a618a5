CREATE TABLE reconciliation (
    id UUID NOT NULL,
    model_id TEXT COLLATE "C",
    cause TEXT COLLATE "C" NOT NULL,
    repair TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    places JSONB DEFAULT '[]'::jsonb NOT NULL,
    place INTEGER DEFAULT 0 NOT NULL,
    after TEXT COLLATE "C" DEFAULT '' NOT NULL,
    noted_at TIMESTAMP WITH TIME ZONE,
    noted JSONB,
    orphans_before TIMESTAMP WITH TIME ZONE,
    because TEXT COLLATE "C",
    counts JSONB DEFAULT '{}'::jsonb NOT NULL,
    books JSONB,
    error TEXT COLLATE "C",
    CONSTRAINT reconciliation_pkey PRIMARY KEY (id)
);

CREATE INDEX reconciliation_requested_at_idx ON reconciliation (requested_at);

CREATE TABLE reconciliation_finding (
    reconciliation UUID NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    storage_key TEXT COLLATE "C" NOT NULL,
    model_id TEXT COLLATE "C",
    uid UUID,
    bytes BIGINT,
    modified_at TIMESTAMP WITH TIME ZONE,
    state TEXT COLLATE "C" DEFAULT 'found' NOT NULL,
    detail TEXT COLLATE "C",
    CONSTRAINT reconciliation_finding_pkey PRIMARY KEY (reconciliation, kind, storage_key),
    CONSTRAINT reconciliation_finding_fkey FOREIGN KEY (reconciliation)
        REFERENCES reconciliation (id) ON DELETE CASCADE
);

CREATE TABLE reconciliation_named (
    reconciliation UUID NOT NULL,
    storage_key TEXT COLLATE "C" NOT NULL,
    CONSTRAINT reconciliation_named_pkey PRIMARY KEY (reconciliation, storage_key),
    CONSTRAINT reconciliation_named_fkey FOREIGN KEY (reconciliation)
        REFERENCES reconciliation (id) ON DELETE CASCADE
);
