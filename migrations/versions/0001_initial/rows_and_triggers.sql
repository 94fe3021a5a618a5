-- A row of `erasing` is written again when its objects are claimed, and is dead soon after.
ALTER TABLE erasing SET (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 10000
);

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

INSERT INTO audit_head (id, hash, cut_hash)
VALUES (1, decode(repeat('00', 32), 'hex'), decode(repeat('00', 32), 'hex'));

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

CREATE TRIGGER keep_audit BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW WHEN (OLD.number IS NOT NULL) EXECUTE FUNCTION keep_audit();

CREATE TRIGGER keep_audit_link BEFORE UPDATE OR DELETE ON audit_link
    FOR EACH ROW EXECUTE FUNCTION keep_audit_link();

INSERT INTO erased_total (id) VALUES (1);

-- Hashes do not compress: do not try.
ALTER TABLE erased_leaves ALTER COLUMN leaves SET STORAGE EXTERNAL;

INSERT INTO ledger_head (id, number, hash) VALUES (1, 0, '');

ALTER TABLE export_part ALTER COLUMN uids SET STORAGE EXTERNAL;
