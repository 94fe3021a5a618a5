"""Every route of one model reads only the rows of that model.

On plain Postgres each scan of a table that would be distributed has the model in its condition. On
Citus each statement is one task.
"""

import re
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import distribution, partitions
from inference_store.index.database import driver_now
from inference_store.index.dictionary import Dictionary
from inference_store.index.tables import inference, metadata_key, partition_count, registration
from inference_store.query.counting import count_ended
from inference_store.query.deadline import Deadline
from inference_store.query.deadline import fetch as fetch_in_time
from tests.integration.api.conftest import *  # noqa: F403  (the api's fixtures)
from tests.integration.statements import SentStatement, record_statements
from tests.integration.stored_inferences import START, NewInference, at, store
from tests.servers.citus import Citus
from tests.servers.fixtures import migrate, unique
from tests.servers.marks import on_citus, plain_postgres
from tests.servers.postgres import Postgres
from tests.transactions import fetch, opened, transact
from tests.warm.process import run_command

MODEL = "/v1/models/model"
NAMES = tuple(table.name for table in distribution.DISTRIBUTED)
# Only whole names: `partition_count.inferences` belongs to a table of the coordinator.
TABLE_NAME = re.compile(rf"\b({'|'.join(NAMES)})\b")
AT_LEAST = {"key": "frame", "type": "int", "operator": "gte", "value": "3"}
UNLIKE = {"key": "place", "type": "string", "operator": "neq", "value": "hall"}
MISSING = {"key": "place", "operator": "missing"}
CHANGE = {"metadata": [{"key": "seen", "type": "bool", "value": "true"}]}
PREDICTION = {"label": "person", "score": {"lt": 0.4}}
BODIES: list[dict[str, Any]] = [
    {},
    {"metadata_filter": [AT_LEAST]},
    {"metadata_filter": [AT_LEAST, UNLIKE], "prediction": PREDICTION},
    {"metadata_filter": [MISSING], "ok": True, "sort": "received_at"},
    {"prediction": PREDICTION, "include": ["metadata", "predictions"]},
    {"inference_ids": ["a1", "b7"]},
    {"data_hash": "0" * 64},
    {"received_at": {"from": at(2).isoformat()}},
]
ROUTES: list[tuple[str, str, Any]] = [
    *(("POST", f"{MODEL}/inferences/query", body) for body in BODIES),
    *(
        ("POST", f"{MODEL}/inferences/count", body)
        for body in BODIES
        if not {"include", "sort"} & set(body)
    ),
    ("GET", f"{MODEL}/inferences", None),
    ("GET", f"{MODEL}/inferences/a1?include=metadata&include=predictions", None),
    ("GET", f"{MODEL}/metadata-keys", None),
    ("POST", f"{MODEL}/inferences/a2/metadata", CHANGE),
    ("POST", f"{MODEL}/inferences/tags", {"add": ["seen"], "filter": "frame = 3", "expected": 1}),
    ("DELETE", f"{MODEL}/inferences/a4", None),
    ("DELETE", MODEL, None),
]


@pytest.fixture
def sent_statements(engine: AsyncEngine) -> Iterator[list[SentStatement]]:
    with record_statements(engine) as sent:
        yield sent


def select_distributed(sent: Sequence[SentStatement]) -> list[SentStatement]:
    kinds = ("SELECT", "WITH", "UPDATE", "DELETE")
    return [
        statement
        for statement in sent
        if statement.text.lstrip("( ").startswith(kinds) and TABLE_NAME.search(statement.text)
    ]


async def store_models(engine: AsyncEngine) -> None:
    for model_id in ("model", "other"):
        inferences = [
            NewInference(
                f"a{n}",
                at(n),
                [("frame", "int", str(n)), ("place", "string", f"p{n}")],
                [("person", n / 10)],
                ("b7",) if n == 7 else (),
                model_id=model_id,
            )
            for n in range(10)
        ]
        await store(engine, *inferences)


async def test_every_route_of_a_model_reads_one_shard(
    client: httpx.AsyncClient, engine: AsyncEngine, sent_statements: list[SentStatement]
) -> None:
    await store_models(engine)
    for method, path, body in ROUTES:
        sent_statements.clear()
        answer = await client.request(method, path, json=body)
        assert answer.status_code < 300 or answer.status_code == 409, (path, answer.text)
        sent = select_distributed(sent_statements)
        assert sent or "metadata-keys" in path, path
        for statement, parameters in sent:
            if path.endswith(("/metadata", "/tags")) and is_claim_check(statement):
                continue
            await check_statement(engine, statement, parameters)


def is_claim_check(statement: str) -> bool:
    """Check whether an edit asks if any erasure claims its blob: blobs may be shared by models."""
    tables = {name for name in NAMES if re.search(rf"(FROM|JOIN) {name}\b", statement)}
    return tables == {"erasing"} and "erasing.model =" not in statement


async def check_statement(engine: AsyncEngine, statement: str, parameters: tuple[Any, ...]) -> None:
    """Check that a statement is one task on Citus, or scans rows of one model on plain Postgres."""
    async with engine.connect() as connection:
        distributed = await distribution.is_distributed(connection)
        driver = driver_now(connection)
        if distributed:
            plan = [row[0] for row in await driver.fetch(f"EXPLAIN {statement}", *parameters)]
            assert any("Task Count: 1" in line for line in plan), (statement, plan)
        else:
            explanation = await driver.fetchval(f"EXPLAIN (FORMAT JSON) {statement}", *parameters)
            check_plan(explanation[0]["Plan"], statement)


def check_plan(node: dict[str, Any], statement: str) -> None:
    """Check that every scan of a distributed table has the model in its condition."""
    relation = node.get("Relation Name", "")
    if any(relation == name or relation.startswith(f"{name}_p2") for name in NAMES):
        conditions = " ".join(
            str(node.get(key, "")) for key in ("Index Cond", "Filter", "Recheck Cond")
        )
        conditions += str([plan.get("Index Cond", "") for plan in node.get("Plans", [])])
        assert "model = " in conditions, f"{relation}: {conditions!r} in {statement}"
    for inner in node.get("Plans", []):
        check_plan(inner, statement)


# `inference-store distribute`: what it refuses, and how it changes the tables.

_STAND_IN = """
CREATE TABLE pg_dist_partition (logicalrelid regclass, partmethod "char", repmodel "char");
CREATE FUNCTION create_reference_table(name regclass) RETURNS void LANGUAGE sql AS
    'INSERT INTO pg_dist_partition VALUES (name, ''n'', ''t'')';
CREATE FUNCTION create_distributed_table(
    name regclass, by text, colocate_with text = 'default', shard_count int = 32
) RETURNS void LANGUAGE sql AS
    'INSERT INTO pg_dist_partition VALUES (name, ''h'', ''s'')'
"""


async def install_stand_in(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for statement in _STAND_IN.split(";\n"):
            await connection.execute(text(statement))


def run_distribute(dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"INFERENCE_STORE_POSTGRES_DSN": dsn, "PATH": ""}
    return run_command("distribute", *arguments, environment=environment)


@plain_postgres
def test_refuses_a_plain_postgres_with_the_remedy(database: str) -> None:
    available = "SELECT count(*) FROM pg_available_extensions WHERE name = 'citus'"
    because = "is installed but not loaded" if Postgres(database).ask(available) else "has no Citus"
    refused = run_distribute(database)
    assert refused.returncode == 1
    assert because in refused.stderr
    assert "nothing was changed" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_rejects_an_invalid_number_of_shards(database: str) -> None:
    for shards in ("0", "1025", "many"):
        refused = run_distribute(database, "--shards", shards)
        assert refused.returncode == 2, shards
        assert "is not a whole number from 1 to 1024" in refused.stderr


@plain_postgres
async def test_distributes_every_table_once(engine: AsyncEngine) -> None:
    """Afterwards numbers continue where they were, and partitions are made and dropped."""
    first = await store(engine, NewInference("a", model_id="one", metadata=[("k", "int", "1")]))
    await install_stand_in(engine)
    messages: list[str] = []
    await distribution.spread(engine, shards=32, say=messages.append)
    assert len(messages) == len(distribution.steps(set(), shards=32)) + 1
    assert messages[-1].startswith("The tables are distributed.")
    assert await transact(engine, distribution.is_distributed)
    await distribution.spread(engine, shards=32, say=messages.append)
    assert messages[-1].startswith("The tables are distributed already.")
    second = await store(engine, NewInference("a", model_id="two", metadata=[("l", "int", "1")]))
    models = await fetch(engine, select(registration.c.model))
    keys = await fetch(engine, select(metadata_key.c.key))
    assert sorted(models) == [first, second] == [1, 2]
    assert sorted(keys) == [1, 2]
    dictionary = Dictionary(engine)
    await dictionary.resolve({first: ["k"]}, {first: ["person"]})
    assert dictionary.keys.number(first, "k") == 1
    at = START + timedelta(days=40)
    span = (await partitions.make_missing(engine, [at], target=1000)).find(at)
    assert span is not None
    await partitions.drop(engine, span)
    assert span not in await transact(engine, partitions.list_partitions)


@plain_postgres
async def test_drops_counts_and_their_triggers_first(engine: AsyncEngine) -> None:
    await store(engine, NewInference("a"))
    later = datetime(2100, 1, 1, tzinfo=UTC)
    await count_ended(engine, seconds=60, before=later)
    triggers = text("SELECT count(*) FROM pg_trigger WHERE tgname = 'outdate_counts'")
    counts = select(func.count()).select_from(partition_count)
    async with engine.connect() as connection:
        assert (await connection.scalar(triggers), await connection.scalar(counts)) == (1, 1)
    await install_stand_in(engine)
    await distribution.spread(engine, shards=32, say=lambda _: None)
    await count_ended(engine, seconds=60, before=later)
    async with engine.connect() as connection:
        assert (await connection.scalar(triggers), await connection.scalar(counts)) == (0, 0)


@plain_postgres
async def test_continues_after_a_crash(engine: AsyncEngine) -> None:
    await install_stand_in(engine)

    def crash(sentence: str) -> None:
        if sentence.startswith("label"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await distribution.spread(engine, shards=32, say=crash)
    messages: list[str] = []
    await distribution.spread(engine, shards=32, say=messages.append)
    assert messages[0].startswith("model_key")


@plain_postgres
async def test_refuses_while_services_run(engine: AsyncEngine, database: str) -> None:
    await install_stand_in(engine)
    async with (
        opened(database, application="inference-store-ingester") as service,
        service.connect() as connection,
    ):
        await connection.execute(text("SELECT 1"))
        with pytest.raises(
            distribution.CannotDistribute, match="use the database: inference-store-ingester"
        ):
            await distribution.spread(engine, shards=32, say=lambda _: None)


# An installation that grows: it has rows before its tables are distributed to nodes.

MODELS = tuple(f"model {number}" for number in range(6))
NODES = text(
    "SELECT count(DISTINCT nodeport) FROM citus_shards WHERE table_name = 'inference'::regclass"
)


@pytest.fixture
async def grown_engine(postgres_server: Citus) -> AsyncIterator[AsyncEngine]:
    """Create a database, and distribute it to several nodes after its first rows came."""
    name = unique()
    dsn = postgres_server.create_database(name)
    migrate(dsn)
    async with opened(dsn) as engine:
        for model_id in MODELS:
            await store(
                engine, NewInference("before", model_id=model_id, metadata=[("k", "int", "1")])
            )
    await distribution.distribute(dsn, shards=4, say=lambda _: None)
    yield engine
    await engine.dispose()
    postgres_server.drop_database(name)


@on_citus
async def test_moves_earlier_rows_to_their_shards_and_settings_reach_the_workers(
    grown_engine: AsyncEngine, postgres_server: Citus
) -> None:
    for model_id in MODELS:
        await store(
            grown_engine, NewInference("after", model_id=model_id, metadata=[("k", "int", "2")])
        )
    here = inference.c
    async with grown_engine.connect() as connection:
        counted = select(here.model, func.count()).group_by(here.model)
        counts = [number for _, number in await connection.execute(counted)]
        assert counts == [2] * len(MODELS)
        assert await connection.scalar(NODES) == max(1, len(postgres_server.workers))
    # The argument is volatile, so that the coordinator does not evaluate it.
    names = ("enable_nestloop", "statement_timeout")
    settings = [func.current_setting(func.nullif(name, func.random().concat(""))) for name in names]
    async with grown_engine.connect() as connection:
        statement = select(*settings).where(
            here.model == await connection.scalar(select(here.model))
        )
        answers = await fetch_in_time(
            connection, statement, Deadline.after(30), settings={"enable_nestloop": "off"}
        )
    assert [(nestloop, timeout != "0") for nestloop, timeout in answers] == [("off", True)] * 2
