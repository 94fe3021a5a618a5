CREATE TABLE certificate (
    number BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    erasure UUID,
    model INTEGER,
    issued_at TIMESTAMP WITH TIME ZONE NOT NULL,
    signed TEXT COLLATE "C" NOT NULL,
    hash BYTEA NOT NULL,
    CONSTRAINT certificate_pkey PRIMARY KEY (number)
);

CREATE INDEX certificate_erasure_idx ON certificate (erasure);

CREATE INDEX certificate_model_number_idx ON certificate (model, number);

CREATE TABLE erased_leaves (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    erasure UUID NOT NULL,
    certificate BIGINT,
    hashed_by TEXT COLLATE "C" NOT NULL,
    inferences BIGINT NOT NULL,
    objects BIGINT NOT NULL,
    oldest TIMESTAMP WITH TIME ZONE,
    newest TIMESTAMP WITH TIME ZONE,
    span TEXT COLLATE "C",
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    leaves BYTEA NOT NULL,
    CONSTRAINT erased_leaves_pkey PRIMARY KEY (id)
);

-- Hashes do not compress: do not try.
ALTER TABLE erased_leaves ALTER COLUMN leaves SET STORAGE EXTERNAL;

CREATE INDEX erased_leaves_certificate_idx ON erased_leaves (certificate, id);

CREATE INDEX erased_leaves_erasure_idx ON erased_leaves (erasure, id);
