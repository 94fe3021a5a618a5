CREATE TABLE policy (
    level TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    revision INTEGER NOT NULL,
    CONSTRAINT policy_pkey PRIMARY KEY (level, subject)
);

CREATE TABLE policy_version (
    level TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    revision INTEGER NOT NULL,
    document TEXT COLLATE "C",
    set_by TEXT COLLATE "C" NOT NULL,
    set_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    effective_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    revoked_at TIMESTAMP WITH TIME ZONE,
    revoked_by TEXT COLLATE "C",
    reason TEXT COLLATE "C",
    CONSTRAINT policy_version_pkey PRIMARY KEY (level, subject, revision)
);

CREATE TABLE policy_preview (
    token UUID NOT NULL,
    level TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    revision INTEGER NOT NULL,
    policy TEXT COLLATE "C" NOT NULL,
    made_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT policy_preview_pkey PRIMARY KEY (token)
);

CREATE TABLE policy_sweep (
    model INTEGER NOT NULL,
    rule INTEGER NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    chain TEXT COLLATE "C" NOT NULL,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    whole_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT policy_sweep_pkey PRIMARY KEY (model, rule, scope)
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
    responses_deleted BIGINT DEFAULT 0 NOT NULL,
    project_id TEXT COLLATE "C",
    CONSTRAINT retention_run_pkey PRIMARY KEY (id)
);

CREATE INDEX retention_run_requested_at_idx ON retention_run (requested_at);
