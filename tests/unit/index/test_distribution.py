"""The placement of tables under Citus: each table has one, and Citus can carry it out."""

from sqlalchemy import Table, UniqueConstraint

from inference_store.index.distribution import (
    DISTRIBUTED,
    LOCAL,
    REFERENCE,
    find_undistributed,
    steps,
)
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
    assert find_undistributed() == set(), "say in index/distribution.py where it lives under Citus"
    assert len(DISTRIBUTED) + len(REFERENCE) + len(LOCAL) == len(METADATA.sorted_tables)


def test_the_statements() -> None:
    written = [statement for step in steps(set(), shards=32) for statement in step.statements]
    assert written == GOLDEN.strip().splitlines()


def test_leaves_distributed_tables_alone() -> None:
    assert steps(SPREAD, shards=32) == []
    assert [step.table for step in steps(SPREAD - {"tombstone"}, shards=8)] == ["tombstone"]


def list_unique_columns(table: Table) -> list[set[str]]:
    columns = [{column.name for column in table.primary_key.columns}]
    columns += [{c.name for c in index.columns} for index in table.indexes if index.unique]
    columns += [
        {c.name for c in constraint.columns}
        for constraint in table.constraints
        if isinstance(constraint, UniqueConstraint)
    ]
    return columns


def test_unique_keys_of_distributed_tables_include_the_model() -> None:
    for table in DISTRIBUTED:
        assert all("model" in columns for columns in list_unique_columns(table)), table.name
        assert not any(column.identity for column in table.columns), table.name


def test_no_foreign_key_ties_what_is_spread() -> None:
    for table in METADATA.sorted_tables:
        for key in table.foreign_keys:
            assert not {table.name, key.column.table.name} & SPREAD
