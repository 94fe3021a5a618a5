CREATE TABLE audit (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    actor TEXT COLLATE "C" NOT NULL,
    action TEXT COLLATE "C" NOT NULL,
    model INTEGER,
    uid UUID,
    detail JSONB DEFAULT '{}'::jsonb NOT NULL,
    model_id TEXT COLLATE "C",
    client TEXT COLLATE "C",
    number BIGINT,
    taken_by BIGINT,
    CONSTRAINT audit_pkey PRIMARY KEY (id)
);

CREATE INDEX audit_actor_id_idx ON audit (actor, id);

CREATE INDEX audit_at_idx ON audit (at);

CREATE INDEX audit_model_id_id_idx ON audit (model_id, id);

CREATE INDEX audit_uid_idx ON audit (uid);

CREATE INDEX audit_inferences_idx ON audit USING gin ((detail -> 'inferences')) WHERE action = 'thumbnails_read';

CREATE INDEX audit_unchained_idx ON audit (id) WHERE number IS NULL;

CREATE TABLE audit_link (
    number BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    salt BYTEA,
    values_hash BYTEA NOT NULL,
    hash BYTEA NOT NULL,
    CONSTRAINT audit_link_pkey PRIMARY KEY (number)
);

CREATE UNIQUE INDEX audit_link_entry_key ON audit_link (entry);

CREATE TABLE audit_head (
    id INTEGER NOT NULL,
    number BIGINT DEFAULT 0 NOT NULL,
    hash BYTEA NOT NULL,
    cut BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT audit_head_pkey PRIMARY KEY (id)
);

INSERT INTO audit_head (id, hash) VALUES (1, decode(repeat('00', 32), 'hex'));

CREATE TABLE audit_checkpoint (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    signed JSONB,
    CONSTRAINT audit_checkpoint_pkey PRIMARY KEY (id)
);

CREATE INDEX audit_checkpoint_number_idx ON audit_checkpoint (number);

-- The audit is append-only: the oldest entries may go (`prune`), and the values of an entry may be
-- removed, but only together with their note in `taken_by`.
CREATE FUNCTION keep_audit() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('inference_store.audit', true) = 'prune' THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND OLD.taken_by IS NULL AND NEW.taken_by IS NOT NULL
        AND NEW.uid IS NULL AND NEW.detail = '{}'::jsonb
        AND (NEW.id, NEW.number, NEW.at, NEW.actor, NEW.client, NEW.action, NEW.model, NEW.model_id)
        IS NOT DISTINCT FROM
        (OLD.id, OLD.number, OLD.at, OLD.actor, OLD.client, OLD.action, OLD.model, OLD.model_id) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit is append-only: % of % refused', lower(TG_OP), TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$body$;

CREATE FUNCTION keep_audit_link() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('inference_store.audit', true) = 'prune' THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.salt IS NULL
        AND (NEW.number, NEW.entry, NEW.values_hash, NEW.hash)
        = (OLD.number, OLD.entry, OLD.values_hash, OLD.hash) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit is append-only: % of % refused', lower(TG_OP), TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$body$;

CREATE FUNCTION keep_audit_checkpoint() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('inference_store.audit', true) = 'prune' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit is append-only: % of % refused', lower(TG_OP), TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$body$;

CREATE TRIGGER keep_audit BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW WHEN (OLD.number IS NOT NULL) EXECUTE FUNCTION keep_audit();

CREATE TRIGGER keep_audit_link BEFORE UPDATE OR DELETE ON audit_link
    FOR EACH ROW EXECUTE FUNCTION keep_audit_link();

CREATE TRIGGER keep_audit_checkpoint BEFORE UPDATE OR DELETE ON audit_checkpoint
    FOR EACH ROW EXECUTE FUNCTION keep_audit_checkpoint();
