CREATE TABLE partition_count (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    span TEXT COLLATE "C" NOT NULL,
    model INTEGER NOT NULL,
    lo UUID NOT NULL,
    hi UUID NOT NULL,
    begun_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    counted_at TIMESTAMP WITH TIME ZONE,
    inferences BIGINT,
    unlabelled BIGINT,
    labels JSONB,
    keys JSONB,
    CONSTRAINT partition_count_pkey PRIMARY KEY (id),
    CONSTRAINT partition_count_span_fkey FOREIGN KEY (span)
        REFERENCES partition_span (name) ON DELETE CASCADE
);

CREATE INDEX partition_count_model_lo_idx ON partition_count (model, lo);

CREATE INDEX partition_count_span_model_idx ON partition_count (span, model);

CREATE TABLE outdated_count (
    partition_count BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL
);

CREATE INDEX outdated_count_partition_count_idx ON outdated_count (partition_count);

-- A trigger that a partition gets when it is counted: whatever writes to the partition outdates its
-- counts. One row a transaction, which remembers that it wrote it: until the transaction ends no
-- count can begin.
CREATE FUNCTION outdate_counts() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    written integer;
    place text;
BEGIN
    IF TG_OP = 'DELETE' THEN written := OLD.model; ELSE written := NEW.model; END IF;
    place := TG_ARGV[0] || ' ' || written;
    IF current_setting('inference_store.outdated', true) = place THEN RETURN NULL; END IF;
    INSERT INTO outdated_count (partition_count)
    SELECT counted.id FROM partition_count counted
    WHERE counted.span = TG_ARGV[0] AND counted.model = written AND NOT EXISTS (
        SELECT FROM outdated_count already WHERE already.partition_count = counted.id
    );
    PERFORM set_config('inference_store.outdated', place, true);
    RETURN NULL;
END
$body$;
