"""Services read the newest revision off the files' names: Alembic must think the same."""

from pathlib import Path

import pytest

from inference_store.index.schema import MIGRATIONS, Schema, newest
from tests.unit.index.migrations.written import list_scripts


def test_the_newest_file_is_the_head() -> None:
    assert newest() == list_scripts(MIGRATIONS)[-1].revision


def test_revisions_are_numbered_without_a_gap_and_in_one_line() -> None:
    numbers = [script.revision for script in list_scripts(MIGRATIONS)]
    assert numbers == [f"{number + 1:04}" for number in range(len(numbers))]
    for script in list_scripts(MIGRATIONS):
        assert Path(script.path).name.startswith(f"{script.revision}_")


def test_reports_a_missing_folder(tmp_path: Path) -> None:
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
