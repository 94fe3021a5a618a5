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
    CONSTRAINT api_key_pkey PRIMARY KEY (id)
);
