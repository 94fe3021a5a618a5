"""The placement of tables under Citus: each table has one, and Citus can carry it out."""

import re
from collections import Counter
from pathlib import Path

from asyncpg.exceptions import (
    AdminShutdownError,
    ConnectionDoesNotExistError,
    InterfaceError,
    UndefinedColumnError,
)
from sqlalchemy import Table, UniqueConstraint

from inference_store.index.database import is_transient
from inference_store.index.distribution import DISTRIBUTED, REFERENCE, steps
from inference_store.index.tables import METADATA

SPREAD = {table.name for table in (*DISTRIBUTED, *REFERENCE)}
# Never joined with distributed tables, and so on the coordinator alone.
LOCAL = """
    api_key audit audit_head audit_link certificate consumer_lag dead_letter_limit_lift
    erased_batch erased_leaves erased_span erased_total erasing_object erasure erasure_model
    erasure_obstacle export_download export_erased export_job export_part former_model
    former_producers hold hold_change kafka_partition ledger_head ledger_intent ledger_outbox
    lost_offsets metadata_key_delta metadata_key_seen outdated_count partition_count
    partition_span policy policy_preview policy_sweep policy_version producer_report
    producer_sequence reconciliation reconciliation_finding reconciliation_named retention_run
    saved_view unsettled_event web_session
""".split()  # noqa: SIM905


def test_every_table_has_a_place() -> None:
    """A new table is listed above, or in index/distribution.py."""
    names = sorted(table.name for table in METADATA.sorted_tables)
    assert names == sorted([*SPREAD, *LOCAL])


def test_leaves_distributed_tables_alone() -> None:
    assert steps(SPREAD, shards=32) == []
    assert [step.table for step in steps(SPREAD - {"tombstone"}, shards=8)] == ["tombstone"]


def list_unique_columns(table: Table) -> list[set[str]]:
    columns = [{column.name for column in table.primary_key.columns}]
    columns += [{c.name for c in index.columns} for index in table.indexes if index.unique]
    constraints = [it for it in table.constraints if isinstance(it, UniqueConstraint)]
    return columns + [{c.name for c in constraint.columns} for constraint in constraints]


def test_unique_keys_of_distributed_tables_include_the_model() -> None:
    for table in DISTRIBUTED:
        assert all("model" in columns for columns in list_unique_columns(table)), table.name
        assert not any(column.identity for column in table.columns), table.name


def test_no_foreign_key_ties_what_is_spread() -> None:
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
