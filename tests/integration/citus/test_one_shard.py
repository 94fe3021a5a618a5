"""Every route that is scoped by a model asks for one model's rows alone.

On plain Postgres: each scan of what would be distributed is bound to the model. On Citus: each
statement is one task.
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
from tests.integration.sent import Sent, statements_of
from tests.integration.stored import Made, at, store

MODEL = "/v1/models/model"
NAMES = tuple(table.name for table in DISTRIBUTED)
# Not as a part of another name: `partition_count.inferences` is of a table of the coordinator.
NAMED = re.compile(rf"\b({'|'.join(NAMES)})\b")
EQUAL = {"key": "frame", "type": "int", "operator": "gte", "value": "3"}
UNLIKE = {"key": "place", "type": "string", "operator": "neq", "value": "hall"}
MISSING = {"key": "place", "operator": "missing"}
CHANGE = {"metadata": [{"key": "seen", "type": "bool", "value": "true"}]}
SAW = {"label": "person", "score": {"lt": 0.4}}
BODIES: list[dict[str, Any]] = [
    {},
    {"metadata_filter": [EQUAL]},
    {"metadata_filter": [EQUAL, UNLIKE], "prediction": SAW},
    {"metadata_filter": [MISSING], "ok": True, "sort": "received_at"},
    {"prediction": SAW, "include": ["metadata", "predictions"]},
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
def asked(engine: AsyncEngine) -> Iterator[list[Sent]]:
    """What is sent to Postgres."""
    with statements_of(engine) as sent:
        yield sent


def of_inferences(sent: Sequence[Sent]) -> list[Sent]:
    """What of it names a distributed table."""
    kinds = ("SELECT", "WITH", "UPDATE", "DELETE")
    return [
        each
        for each in sent
        if each.text.lstrip("( ").startswith(kinds) and NAMED.search(each.text)
    ]


async def stored(engine: AsyncEngine) -> None:
    for model_id in ("model", "other"):
        made = [
            Made(
                f"a{n}",
                at(n),
                [("frame", "int", str(n)), ("place", "string", f"p{n}")],
                [("person", n / 10)],
                ("b7",) if n == 7 else (),
                model_id=model_id,
            )
            for n in range(10)
        ]
        await store(engine, *made)


async def test_every_route_of_a_model_stays_with_it(
    client: httpx.AsyncClient, engine: AsyncEngine, asked: list[Sent]
) -> None:
    await stored(engine)
    for method, path, body in ROUTES:
        asked.clear()
        answer = await client.request(method, path, json=body)
        assert answer.status_code < 300 or answer.status_code == 409, (path, answer.text)
        sent = of_inferences(asked)
        assert sent or "metadata-keys" in path, path
        for statement, parameters in sent:
            if path.endswith("/metadata") and asks_who_claims(statement):
                continue
            await check_statement(engine, statement, parameters)


def asks_who_claims(statement: str) -> bool:
    """An edit asks of every model whether an erasure claims its blob: blobs may be shared."""
    tables = {name for name in NAMES if re.search(rf"(FROM|JOIN) {name}\b", statement)}
    return tables == {"erasing"} and "erasing.model =" not in statement


async def check_statement(engine: AsyncEngine, statement: str, parameters: tuple[Any, ...]) -> None:
    """One task on Citus; on plain Postgres scans of one model's rows alone."""
    async with engine.connect() as connection:
        distributed = await is_distributed(connection)
        driver = await driver_of(connection)
        if distributed:
            plan = [row[0] for row in await driver.fetch(f"EXPLAIN {statement}", *parameters)]
            assert any("Task Count: 1" in line for line in plan), (statement, plan)
        else:
            found = await driver.fetchval(f"EXPLAIN (FORMAT JSON) {statement}", *parameters)
            check(found[0]["Plan"], statement)


def check(node: dict[str, Any], statement: str) -> None:
    """Every scan of a partition of a distributed table has the model in its condition."""
    relation = node.get("Relation Name", "")
    if any(relation == name or relation.startswith(f"{name}_p2") for name in NAMES):
        said = " ".join(str(node.get(key, "")) for key in ("Index Cond", "Filter", "Recheck Cond"))
        said += str([each.get("Index Cond", "") for each in node.get("Plans", [])])
        assert "model = " in said, f"{relation}: {said!r} in {statement}"
    for inner in node.get("Plans", []):
        check(inner, statement)
