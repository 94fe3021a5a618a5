"""Postgres beyond one node: where each table lives when the database is a Citus coordinator.

One model lives on one shard. What is known of inferences is distributed by the model's integer and
co-located, so that a question about one model is one task on one node. What such questions join is
a reference table, on every node. The books, policies and catalogues stay on the coordinator.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import (
    METADATA,
    PARTITIONED,
    blob_reference,
    erasing,
    erasure_held,
    label,
    metadata_key,
    model_key,
    model_label,
    registration,
    tombstone,
)

Place = Literal["distributed", "reference"]
DISTRIBUTED = (*PARTITIONED, erasing, erasure_held, tombstone, blob_reference)
REFERENCE = (registration, metadata_key, label, model_key, model_label)
# Never joined with what is distributed; a table that is new is named here, or above.
LOCAL = (
    "api_key",
    "audit",
    "audit_checkpoint",
    "audit_head",
    "audit_link",
    "certificate",
    "dead_letter",
    "erased_leaves",
    "erased_batch",
    "erased_span",
    "erased_total",
    "erasing_object",
    "erasure",
    "erasure_model",
    "erasure_obstacle",
    "former_model",
    "dead_letter_limit_lift",
    "former_producers",
    "hold",
    "hold_change",
    "kafka_partition",
    "ledger_head",
    "ledger_intent",
    "lost_offsets",
    "metadata_key_delta",
    "metadata_key_seen",
    "outdated_count",
    "parked_event",
    "partition_count",
    "partition_span",
    "policy",
    "policy_preview",
    "policy_sweep",
    "policy_version",
    "producer_report",
    "producer_sequence",
    "reconciliation",
    "reconciliation_finding",
    "reconciliation_named",
    "retention_run",
)
# A distributed table has no triggers, so nothing is counted ahead of its queries.
_UNCOUNTED = (
    "DELETE FROM partition_count",
    "DO $$ DECLARE leaf regclass; BEGIN"
    " FOR leaf IN SELECT tgrelid FROM pg_trigger WHERE tgname = 'outdate_counts' LOOP"
    " EXECUTE format('DROP TRIGGER outdate_counts ON %s', leaf); END LOOP; END $$",
)
_HAS_CITUS = text("SELECT to_regclass('pg_dist_partition') IS NOT NULL")
_FINAL: WeakKeyDictionary[Engine, bool] = WeakKeyDictionary()
_PLACED = text(
    "SELECT c.relname FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid"
    " WHERE (p.partmethod = 'h' OR p.repmodel = 't') AND c.relname = ANY(:names)"
)
_OURS = text(
    "SELECT DISTINCT application_name::text FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND application_name LIKE 'inference-store-%' ORDER BY 1"
)


class CannotDistribute(Exception):
    """Why the tables cannot be distributed, and what to do. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one table needs, in a transaction of its own."""

    table: str
    place: Place
    statements: tuple[str, ...]


def steps(placed: Collection[str], *, shards: int) -> list[Step]:
    """What is still to be done; `placed`: the tables that are where they belong."""
    missing = [_reference(table) for table in REFERENCE if table.name not in placed]
    missing += [_distributed(table, shards) for table in DISTRIBUTED if table.name not in placed]
    return missing


def _reference(table: Table) -> Step:
    made = f"SELECT create_reference_table('{table.name}')"
    return Step(table.name, "reference", (*_plain_numbers(table), made))


def _plain_numbers(table: Table) -> Iterator[str]:
    """An identity column becomes a sequence of its own: Citus takes identities of bigint alone."""
    for column in table.columns:
        if column.identity is not None:
            name, numbers = column.name, f"{table.name}_{column.name}_numbers"
            there = f"{table.name}_{name}_seq"
            yield f"CREATE SEQUENCE {numbers} AS integer"
            yield f"SELECT setval('{numbers}', last_value, is_called) FROM {there}"
            yield f"ALTER TABLE {table.name} ALTER COLUMN {name} DROP IDENTITY"
            default = f"nextval('{numbers}')"
            yield f"ALTER TABLE {table.name} ALTER COLUMN {name} SET DEFAULT {default}"
            yield f"ALTER SEQUENCE {numbers} OWNED BY {table.name}.{name}"


def _distributed(table: Table, shards: int) -> Step:
    first = DISTRIBUTED[0]
    how = f"shard_count => {shards}" if table is first else f"colocate_with => '{first.name}'"
    if table is first:
        how = f"colocate_with => 'none', {how}"
    made = f"SELECT create_distributed_table('{table.name}', 'model', {how})"
    before = _UNCOUNTED if table is first else ()
    return Step(table.name, "distributed", (*before, made))


async def placed(connection: AsyncConnection) -> set[str]:
    """The tables that are distributed or on every node already."""
    if not await connection.scalar(_HAS_CITUS):
        return set()
    names = [table.name for table in (*DISTRIBUTED, *REFERENCE)]
    return set((await connection.execute(_PLACED, {"names": names})).scalars())


async def is_distributed(connection: AsyncConnection) -> bool:
    """Whether the partitioned tables are distributed: their DDL is less rich then."""
    return DISTRIBUTED[0].name in await placed(connection)


async def is_distributed_cached(connection: AsyncConnection) -> bool:
    """The same, asked once of an engine if the answer is final: the tables are distributed, or
    there is no Citus. No service runs while they are being distributed."""
    engine = connection.sync_engine
    if engine not in _FINAL:
        places = await placed(connection)
        if not places and await connection.scalar(_HAS_CITUS):
            return False
        _FINAL[engine] = DISTRIBUTED[0].name in places
    return _FINAL[engine]


def is_known_whole(engine: Engine) -> bool:
    """Whether it was asked once, and the tables of this engine are not distributed."""
    return _FINAL.get(engine) is False


async def require_extension(connection: AsyncConnection) -> None:
    """Raises CannotDistribute where Citus is not there, or not loaded."""
    available = text("SELECT default_version FROM pg_available_extensions WHERE name = 'citus'")
    if await connection.scalar(available) is None:
        raise CannotDistribute(
            "This Postgres has no Citus: the extension is not installed on its server. Install"
            " Citus 12 or newer there, on every node; nothing was changed."
        )
    loaded = str(await connection.scalar(text("SHOW shared_preload_libraries")))
    if "citus" not in {name.strip() for name in loaded.split(",")}:
        raise CannotDistribute(
            "Citus is installed but not loaded: put it first into shared_preload_libraries"
            f" (now {loaded!r}) and restart Postgres; nothing was changed."
        )


async def require_quiet(connection: AsyncConnection) -> None:
    """Raises CannotDistribute while services are connected: rows are moved, not copied live."""
    running = list((await connection.execute(_OURS)).scalars())
    if running:
        raise CannotDistribute(
            f"Services still use the database: {', '.join(running)}. Stop them first; what they"
            " would ingest waits in Kafka. Nothing was changed."
        )


def unplaced() -> set[str]:
    """Tables that nobody has decided about: always empty, a test says so."""
    named = {table.name for table in (*DISTRIBUTED, *REFERENCE)} | set(LOCAL)
    return {table.name for table in METADATA.sorted_tables} ^ named
