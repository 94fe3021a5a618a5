"""Migrations run while the version before goes on: what in their SQL breaks it is refused."""

import pytest

from inference_store.index.schema import MIGRATIONS
from tests.unit.index.migrations.written import (
    find_breaking_statements,
    list_created_tables,
    list_scripts,
    list_statements,
)


def test_a_migration_only_adds(subtests: pytest.Subtests) -> None:
    """Or says why not: `contract = "nothing reads it since 1.4"` in the migration's file."""
    there: set[str] = set()
    for script in list_scripts(MIGRATIONS):
        sql = list_statements(MIGRATIONS, script)
        broken = [*find_breaking_statements(sql, there)]
        reason = getattr(script.module, "contract", None)
        with subtests.test(script.revision):
            assert not broken or (isinstance(reason, str) and len(reason) > 10), "\n".join(broken)
            assert broken or reason is None, "it only adds, and needs no reason"
        there |= list_created_tables(sql)
    assert {"inference", "kafka_partition", "prediction"} <= there


def test_rejects_statements_that_break_the_version_before() -> None:
    for statement in (
        "DROP TABLE inference",
        "ALTER TABLE inference DROP COLUMN width",
        "ALTER TABLE inference ALTER COLUMN width TYPE BIGINT",
        "ALTER TABLE inference ALTER width SET DATA TYPE BIGINT",
        "ALTER TABLE inference ALTER COLUMN width SET NOT NULL",
        "ALTER TABLE inference RENAME COLUMN width TO wide",
        "ALTER TABLE inference RENAME TO inferences",
        "ALTER TABLE inference ADD COLUMN colour TEXT NOT NULL",
        "ALTER TABLE inference ADD colour TEXT NOT NULL",
        "ALTER TABLE inference ADD COLUMN made UUID DEFAULT gen_random_uuid()",
        "ALTER TABLE inference ADD COLUMN n BIGINT GENERATED ALWAYS AS IDENTITY",
        "ALTER TABLE inference ADD CONSTRAINT wide CHECK (width > 0)",
        "ALTER TABLE dead_letter DROP CONSTRAINT dead_letter_pkey",
        "ALTER TABLE inference ALTER COLUMN revision DROP DEFAULT",
        "CREATE INDEX wide ON inference (width)",
        "CREATE INDEX IF NOT EXISTS wide ON inference (width)",
        "CREATE UNIQUE INDEX CONCURRENTLY one ON registration (name)",
        "DROP INDEX inference_model_data_hash_idx",
        "UPDATE inference SET width = 0",
        "DELETE FROM tombstone",
        "TRUNCATE erasing",
        "LOCK TABLE inference",
        "ALTER TABLE inference DISABLE TRIGGER ALL",
        "CREATE TRIGGER t BEFORE INSERT ON inference EXECUTE FUNCTION f()",
        "DO $$ BEGIN EXECUTE 'DROP TABLE inference'; END $$",
    ):
        assert len([*find_breaking_statements([statement], {"inference"})]) == 1, statement


def test_accepts_statements_that_only_add() -> None:
    for sql in (
        ['ALTER TABLE inference ADD COLUMN colour TEXT COLLATE "C"'],
        ["ALTER TABLE inference ADD COLUMN n INTEGER DEFAULT 0 NOT NULL"],
        ["ALTER TABLE inference ALTER COLUMN problem DROP NOT NULL"],
        ["CREATE INDEX CONCURRENTLY wide ON inference (width)"],
        ["CREATE INDEX audit_at_idx ON audit (at)"],
        [
            "CREATE INDEX wide ON ONLY inference (width)",
            "CREATE INDEX CONCURRENTLY wide_p1 ON inference_p1 (width)",
            "ALTER INDEX wide ATTACH PARTITION wide_p1",
        ],
        [
            "CREATE TABLE hold (id UUID, CONSTRAINT hold_pkey PRIMARY KEY (id))",
            "CREATE INDEX hold_idx ON hold (id)",
            "ALTER TABLE hold ADD CONSTRAINT c CHECK (true)",
        ],
        ["INSERT INTO registration (model_id, registered_by) VALUES ('a', 'b')"],
    ):
        assert [*find_breaking_statements(sql, {"inference", "registration"})] == [], sql
