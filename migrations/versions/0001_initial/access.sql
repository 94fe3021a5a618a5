CREATE TABLE api_key (
    id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    hash BYTEA NOT NULL,
    old_hash BYTEA,
    old_works_until TIMESTAMP WITH TIME ZONE,
    grants JSONB NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE,
    rotated_at TIMESTAMP WITH TIME ZONE,
    revoked_at TIMESTAMP WITH TIME ZONE,
    last_used_at TIMESTAMP WITH TIME ZONE,
    revision INTEGER DEFAULT 1 NOT NULL,
    in_ledger BOOLEAN DEFAULT false NOT NULL,
    unconfirmed BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT api_key_pkey PRIMARY KEY (id)
);

CREATE TABLE web_session (
    id_hash BYTEA NOT NULL,
    caller TEXT COLLATE "C" NOT NULL,
    secret_hash BYTEA,
    issuer TEXT COLLATE "C",
    roles JSONB,
    host TEXT COLLATE "C" NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    used_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    idle_until TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT web_session_pkey PRIMARY KEY (id_hash)
);

CREATE INDEX web_session_caller_idx ON web_session (caller, used_at);

CREATE INDEX web_session_idle_until_idx ON web_session (idle_until);
