CREATE TABLE ledger_head (
    id INTEGER NOT NULL,
    number BIGINT NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    forgotten BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT ledger_head_pkey PRIMARY KEY (id)
);

INSERT INTO ledger_head (id, number, hash) VALUES (1, 0, '');

CREATE TABLE ledger_intent (
    number BIGINT NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    intended_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT ledger_intent_pkey PRIMARY KEY (number, hash)
);

CREATE TABLE ledger_outbox (
    number BIGINT GENERATED ALWAYS AS IDENTITY,
    id UUID NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    body JSONB NOT NULL,
    actor TEXT COLLATE "C" NOT NULL,
    CONSTRAINT ledger_outbox_pkey PRIMARY KEY (number),
    CONSTRAINT ledger_outbox_id_key UNIQUE (id)
);
