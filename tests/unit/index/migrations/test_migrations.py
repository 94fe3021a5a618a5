"""The migrations: numbered in one line, and safe while the version before goes on."""

from pathlib import Path

import pytest

from inference_store.index.schema import MIGRATIONS, Schema, newest
from tests.unit.index.migrations.written import (
    find_breaking_statements,
    list_created_tables,
    list_scripts,
    list_statements,
)


def test_revisions_are_numbered_without_a_gap_and_in_one_line(tmp_path: Path) -> None:
    scripts = list_scripts(MIGRATIONS)
    numbers = [script.revision for script in scripts]
    assert numbers == [f"{number + 1:04}" for number in range(len(numbers))]
    assert [Path(script.path).name.partition("_")[0] for script in scripts] == numbers
    assert newest() == numbers[-1]
    with pytest.raises(FileNotFoundError, match="no migrations in"):
        newest(tmp_path)


def test_a_schema_is_older_current_or_newer() -> None:
    for current, behind, ahead, sentence in (
        (None, True, False, "no tables of the store; this version needs 0002: run"),
        ("0001", True, False, "schema is 0001; this version needs 0002: run"),
        ("0002", False, False, "schema is 0002, as this version needs it"),
        ("0010", False, True, "schema is 0010, newer than this version's 0002"),
    ):
        schema = Schema(current, "0002")
        assert (schema.behind, schema.ahead) == (behind, ahead), current
        assert sentence in str(schema), current


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
