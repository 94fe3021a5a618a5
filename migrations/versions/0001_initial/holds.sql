CREATE TABLE hold (
    id UUID NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    model INTEGER,
    filter TEXT COLLATE "C" NOT NULL,
    inference_ids JSONB,
    until TIMESTAMP WITH TIME ZONE,
    placed_by TEXT COLLATE "C" NOT NULL,
    placed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    in_force_at TIMESTAMP WITH TIME ZONE NOT NULL,
    released_by TEXT COLLATE "C",
    released_at TIMESTAMP WITH TIME ZONE,
    release_reason TEXT COLLATE "C",
    revision INTEGER DEFAULT 1 NOT NULL,
    taken_up INTEGER DEFAULT 0 NOT NULL,
    CONSTRAINT hold_pkey PRIMARY KEY (id)
);

CREATE INDEX hold_placed_at_idx ON hold (placed_at);

CREATE TABLE hold_change (
    hold UUID NOT NULL,
    revision INTEGER NOT NULL,
    change TEXT COLLATE "C" NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    actor TEXT COLLATE "C" NOT NULL,
    document JSONB NOT NULL,
    forget_when_over BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT hold_change_pkey PRIMARY KEY (hold, revision)
);

CREATE INDEX hold_change_forget_idx ON hold_change (hold) WHERE forget_when_over;
