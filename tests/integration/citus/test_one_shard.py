"""Every route of one model reads only the rows of that model.

On plain Postgres each scan of a table that would be distributed has the model in its condition. On
Citus each statement is one task.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import driver_of
from inference_store.index.distribution import DISTRIBUTED, is_distributed
from tests.integration.api.conftest import *  # noqa: F403  (the api's fixtures)
from tests.integration.statements import SentStatement, record_statements
from tests.integration.stored_inferences import NewInference, at, store

MODEL = "/v1/models/model"
NAMES = tuple(table.name for table in DISTRIBUTED)
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
            if path.endswith("/metadata") and is_claim_check(statement):
                continue
            await check_statement(engine, statement, parameters)


def is_claim_check(statement: str) -> bool:
    """Check whether an edit asks if any erasure claims its blob: blobs may be shared by models."""
    tables = {name for name in NAMES if re.search(rf"(FROM|JOIN) {name}\b", statement)}
    return tables == {"erasing"} and "erasing.model =" not in statement


async def check_statement(engine: AsyncEngine, statement: str, parameters: tuple[Any, ...]) -> None:
    """Check that a statement is one task on Citus, or scans rows of one model on plain Postgres."""
    async with engine.connect() as connection:
        distributed = await is_distributed(connection)
        driver = await driver_of(connection)
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
