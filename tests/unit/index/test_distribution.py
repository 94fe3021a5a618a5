"""Tables have a place under Citus, and migrations are safe while the version before runs."""

import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from asyncpg.exceptions import (
    AdminShutdownError,
    ConnectionDoesNotExistError,
    InterfaceError,
    UndefinedColumnError,
)
from sqlalchemy import Table, UniqueConstraint

from inference_store.index.database import is_transient
from inference_store.index.distribution import DISTRIBUTED, REFERENCE, steps
from inference_store.index.schema import MIGRATIONS, Schema, newest
from inference_store.index.tables import METADATA

SPREAD = {table.name for table in (*DISTRIBUTED, *REFERENCE)}
# Never joined with distributed tables, and so on the coordinator alone.
LOCAL = """
    api_key audit audit_head audit_link certificate consumer_lag dead_letter_limit_lift
    erased_batch erased_leaves erased_span erased_total erasing_object erasure erasure_model
    erasure_obstacle export_download export_erased export_job export_part former_model
    former_producers hold hold_change kafka_partition ledger_head ledger_intent ledger_outbox
    lost_offsets metadata_key_delta metadata_key_seen outdated_count partition_count
    partition_span policy_sweep policy_version producer_report
    producer_sequence reconciliation reconciliation_finding reconciliation_named replay_item
    retention_run saved_view unsettled_event web_session
""".split()  # noqa: SIM905


def test_every_table_has_a_place_and_those_that_have_it_keep_it() -> None:
    """A new table is listed above, or in index/distribution.py."""
    names = sorted(table.name for table in METADATA.sorted_tables)
    assert names == sorted([*SPREAD, *LOCAL])
    assert steps(SPREAD, shards=32) == []
    assert [step.table for step in steps(SPREAD - {"tombstone"}, shards=8)] == ["tombstone"]


def list_unique_columns(table: Table) -> list[set[str]]:
    columns = [{column.name for column in table.primary_key.columns}]
    columns += [{c.name for c in index.columns} for index in table.indexes if index.unique]
    constraints = [it for it in table.constraints if isinstance(it, UniqueConstraint)]
    return columns + [{c.name for c in constraint.columns} for constraint in constraints]


def test_keys_of_distributed_tables_fit_citus() -> None:
    for table in DISTRIBUTED:
        assert all("model" in columns for columns in list_unique_columns(table)), table.name
        assert not any(column.identity for column in table.columns), table.name
    for table in METADATA.sorted_tables:
        for key in table.foreign_keys:
            assert not {table.name, key.column.table.name} & SPREAD


def test_distinguishes_transient_errors_from_defects() -> None:
    for error, transient in (
        (InterfaceError("connection is closed"), True),
        # the error of a rollback after a connection was cut amid an operation
        (InterfaceError("cannot perform operation: another operation is in progress"), True),
        (InterfaceError("cannot use a cursor outside of a transaction"), False),
        (ConnectionDoesNotExistError("connection was closed in the middle of operation"), True),
        (AdminShutdownError("terminating connection due to administrator command"), True),
        (UndefinedColumnError("column does not exist"), False),
    ):
        assert is_transient(error) is transient, error


SERVICES = Path(__file__).parents[3] / "services" / "inference_store"


def test_every_lock_has_a_number_of_its_own() -> None:
    text = "\n".join(path.read_text() for path in SERVICES.rglob("*.py"))
    counts = Counter(re.findall(r"= (7_302_\d{3})\b", text))
    assert len(counts) > 5
    assert {number for number, count in counts.items() if count > 1} == set()


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
        there |= {name for line in sql if (name := _read_created_table(line))}
    assert {"inference", "kafka_partition", "prediction"} <= there


_NAME = r'(?:"[^"]+"|[a-z_][\w.]*)'
_ALTER = rf"^ALTER TABLE (IF EXISTS |ONLY )*{_NAME}"
_BIG_INDEX = "CREATE INDEX CONCURRENTLY in an autocommit_block(), partition by partition"
# Forms of statement that the version before, or its traffic, does not survive, and what to do.
REFUSED = {
    r"^DROP TABLE|\bDROP COLUMN": "drop it a release after nothing uses it",
    r"^DROP INDEX": "drop it a release after nothing relies on it",
    r"\bDROP CONSTRAINT": "an ON CONFLICT may name it: a release later",
    r"\bDROP DEFAULT": "the version before relies on it",
    r"\bALTER (COLUMN )?\S+ (SET DATA )?TYPE\b": "add a column, fill it, switch",
    r"\bSET NOT NULL": "the version before may write NULL",
    r"\bRENAME\b": "add the new one, write both, switch",
    r"\bADD (CONSTRAINT|PRIMARY KEY|UNIQUE|CHECK|FOREIGN)": "check it in code",
    r"\bADD (COLUMN )?(?!.*\bDEFAULT\b).*\bNOT NULL": "the version before does not write it: "
    "give it a default",
    # it rewrites the table
    r"\bADD (COLUMN )?.*\b(DEFAULT \w+\(|GENERATED|IDENTITY|SERIAL)": "a constant default, and "
    "fill it in batches",
    r"^(UPDATE|DELETE|TRUNCATE)\b": "a job, in batches",
    r"^CREATE UNIQUE INDEX": "what was written before may not be",
    r"^CREATE INDEX (?!CONCURRENTLY|.*\bON ONLY\b)": _BIG_INDEX,
    r"^LOCK\b": "it stops everybody",
    r"^(VACUUM|CLUSTER|REINDEX)\b": "an operator's work",
}
# Tables with a row for each event, or many: building an index on them takes minutes.
BIG = {
    *(table.name for table in DISTRIBUTED),
    *("unsettled_event", "erased_batch", "erased_span"),
    *("metadata_key_delta", "producer_sequence"),
}
# Other statements about an existing table must be one of these.
HARMLESS = (
    rf"{_ALTER} ADD (COLUMN )?",
    rf"{_ALTER} ALTER (COLUMN )?\S+ (SET (DEFAULT|STATISTICS|STORAGE)|DROP NOT NULL)",
    rf"{_ALTER} SET \(",
    r"^CREATE INDEX (CONCURRENTLY|.*\bON ONLY\b)",
    rf"^ALTER INDEX {_NAME} ATTACH PARTITION",
    r"^(INSERT|COMMENT|ANALYZE|GRANT|CREATE (SEQUENCE|TABLE|FUNCTION)|SELECT|SET|RESET)\b",
)


def list_scripts(migrations: Path) -> list[Script]:
    return [*ScriptDirectory.from_config(_make_config(migrations)).walk_revisions()][::-1]


def list_statements(migrations: Path, script: Script) -> list[str]:
    """Return the statements of a migration as Alembic writes them, one a line, without comments."""
    written = io.StringIO()
    config = _make_config(migrations, written)
    command.upgrade(config, f"{script.down_revision or 'base'}:{script.revision}", sql=True)
    sql = re.sub(r"--[^\n]*", "", written.getvalue())
    sql = re.sub(r"\$(\w*)\$.*?\$\1\$", "$$ a body $$", sql, flags=re.DOTALL)
    lines = (" ".join(statement.split()) for statement in re.split(r";\s*(?:\n|$)", sql))
    own = re.compile(r"^(BEGIN|COMMIT)$|alembic_version", re.IGNORECASE)
    return [line for line in lines if line and not own.search(line)]


def _make_config(migrations: Path, written: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=written) if written else Config()
    config.set_main_option("script_location", str(migrations))
    return config


def find_breaking_statements(sql: list[str], there: set[str]) -> Iterator[str]:
    """A sentence for each statement that touches a table which was there and may break it."""
    tables = {name for line in sql if (name := _read_created_table(line))}
    for line in sql:
        touched = _read_touched_table(line)
        if touched in tables and touched not in there:
            continue
        if touched not in BIG and re.match("CREATE INDEX", line, re.I):
            continue
        remedies = [REFUSED[pattern] for pattern in REFUSED if re.search(pattern, line, re.I)]
        if remedies:
            yield f"{remedies[0]}: {line[:120]}"
        elif not any(re.search(pattern, line, re.I) for pattern in HARMLESS):
            yield f"not known to be harmless: {line[:120]}"


def _read_created_table(line: str) -> str | None:
    match = re.match(rf"CREATE TABLE (?:IF NOT EXISTS )?({_NAME})", line, re.I)
    return match[1].strip('"') if match else None


def _read_touched_table(line: str) -> str | None:
    table = rf"(?:ALTER TABLE (?:IF EXISTS |ONLY )*|INSERT INTO |UPDATE |DELETE FROM )({_NAME})"
    index = rf"CREATE (?:UNIQUE )?(?:INDEX|TRIGGER) .*?\bON (?:ONLY )?({_NAME})"
    match = re.match(rf"{table}|{index}", line, re.I)
    return (match[1] or match[2]).strip('"') if match else None
