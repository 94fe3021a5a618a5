"""Where each table lives under Citus: every one is decided, and what is said of it can be done."""

from sqlalchemy import Table, UniqueConstraint

from inference_store.index.distribution import DISTRIBUTED, LOCAL, REFERENCE, steps, unplaced
from inference_store.index.tables import METADATA

SPREAD = {table.name for table in (*DISTRIBUTED, *REFERENCE)}
GOLDEN = """
CREATE SEQUENCE registration_model_numbers AS integer
SELECT setval('registration_model_numbers', last_value, is_called) FROM registration_model_seq
ALTER TABLE registration ALTER COLUMN model DROP IDENTITY
ALTER TABLE registration ALTER COLUMN model SET DEFAULT nextval('registration_model_numbers')
ALTER SEQUENCE registration_model_numbers OWNED BY registration.model
SELECT create_reference_table('registration')
CREATE SEQUENCE metadata_key_key_numbers AS integer
SELECT setval('metadata_key_key_numbers', last_value, is_called) FROM metadata_key_key_seq
ALTER TABLE metadata_key ALTER COLUMN key DROP IDENTITY
ALTER TABLE metadata_key ALTER COLUMN key SET DEFAULT nextval('metadata_key_key_numbers')
ALTER SEQUENCE metadata_key_key_numbers OWNED BY metadata_key.key
SELECT create_reference_table('metadata_key')
CREATE SEQUENCE label_label_numbers AS integer
SELECT setval('label_label_numbers', last_value, is_called) FROM label_label_seq
ALTER TABLE label ALTER COLUMN label DROP IDENTITY
ALTER TABLE label ALTER COLUMN label SET DEFAULT nextval('label_label_numbers')
ALTER SEQUENCE label_label_numbers OWNED BY label.label
SELECT create_reference_table('label')
SELECT create_reference_table('model_key')
SELECT create_reference_table('model_label')
DELETE FROM partition_count
DO $$ DECLARE leaf regclass; BEGIN FOR leaf IN SELECT tgrelid FROM pg_trigger WHERE tgname = 'outdate_counts' LOOP EXECUTE format('DROP TRIGGER outdate_counts ON %s', leaf); END LOOP; END $$
SELECT create_distributed_table('inference', 'model', colocate_with => 'none', shard_count => 32)
SELECT create_distributed_table('inference_alias', 'model', colocate_with => 'inference')
SELECT create_distributed_table('metadata_number', 'model', colocate_with => 'inference')
SELECT create_distributed_table('metadata_string', 'model', colocate_with => 'inference')
SELECT create_distributed_table('metadata_bool', 'model', colocate_with => 'inference')
SELECT create_distributed_table('metadata_timestamp', 'model', colocate_with => 'inference')
SELECT create_distributed_table('metadata_presence', 'model', colocate_with => 'inference')
SELECT create_distributed_table('prediction', 'model', colocate_with => 'inference')
SELECT create_distributed_table('erasing', 'model', colocate_with => 'inference')
SELECT create_distributed_table('erasure_held', 'model', colocate_with => 'inference')
SELECT create_distributed_table('tombstone', 'model', colocate_with => 'inference')
SELECT create_distributed_table('blob_reference', 'model', colocate_with => 'inference')
"""  # noqa: E501  (a line a statement)


def test_every_table_has_a_place() -> None:
    assert unplaced() == set(), "say in index/distribution.py where it lives under Citus"
    assert len(DISTRIBUTED) + len(REFERENCE) + len(LOCAL) == len(METADATA.sorted_tables)


def test_the_statements() -> None:
    written = [statement for step in steps(set(), shards=32) for statement in step.statements]
    assert written == GOLDEN.strip().splitlines()


def test_what_is_in_its_place_is_left_alone() -> None:
    assert steps(SPREAD, shards=32) == []
    assert [step.table for step in steps(SPREAD - {"tombstone"}, shards=8)] == ["tombstone"]


def unique_columns(table: Table) -> list[set[str]]:
    found = [{column.name for column in table.primary_key.columns}]
    found += [{c.name for c in index.columns} for index in table.indexes if index.unique]
    found += [
        {c.name for c in one.columns}
        for one in table.constraints
        if isinstance(one, UniqueConstraint)
    ]
    return found


def test_what_is_unique_in_a_distributed_table_is_so_within_a_model() -> None:
    for table in DISTRIBUTED:
        assert all("model" in columns for columns in unique_columns(table)), table.name
        assert not any(column.identity for column in table.columns), table.name


def test_no_foreign_key_ties_what_is_spread() -> None:
    for table in METADATA.sorted_tables:
        for key in table.foreign_keys:
            assert not {table.name, key.column.table.name} & SPREAD
