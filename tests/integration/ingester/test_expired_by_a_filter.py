"""Events that have expired by a filtered policy on arrival, through Kafka into Postgres."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import policies
from inference_store.erasure.policies import DEFAULT, RetentionPolicy
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.index.tables import erasing, inference
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.known_keys import KnownKeys
from inference_store.query.filters.saved import save
from tests.integration.ingester.conftest import RunningIngester, wait_for_counts
from tests.producer import Capture, capture

NOW = datetime.now(UTC)  # how old an event is counts from the clock


def make_capture(number: int, reviewed: str | None) -> Capture:
    """Make a capture that is five days old."""
    items = [{"key": "reviewed", "type": "bool", "value": reviewed}] if reviewed else []
    return capture(number, received_at=NOW - timedelta(days=5), metadata=items)


def make_rule(filter: str | None, **keep: str) -> dict[str, Any]:
    saved = None if filter is None else save(parse_text(filter), KnownKeys()).text
    return {"saved": saved, **{f"keep_{name}": age for name, age in keep.items()}}


async def test_first_matching_rule_decides(running: RunningIngester, engine: AsyncEngine) -> None:
    _, producer = running
    first = make_capture(1, "true")
    rules = [
        make_rule("metadata.reviewed = TRUE", input="P1Y", inference="P1Y"),
        make_rule("metadata.reviewed = FALSE", input="P1D", inference="P2D"),
    ]
    rest = [make_rule(None, input="P3D", response="P4D", inference="P30D")]
    async with engine.begin() as connection:
        registration, _ = await registrations.put(connection, first.model_id, Details())
        own = RetentionPolicy.model_validate({"rules": rules})
        await policies.set_policy(connection, registration.model, own)
        wide = RetentionPolicy.model_validate({"rules": rest})
        body = await policies.describe_change(connection, DEFAULT, wide)
        await policies.apply_set(connection, body, NOW, "me")
    await producer.produce(first, make_capture(2, "false"), make_capture(3, None))
    await wait_for_counts(engine, stored=2, expired=1)
    async with engine.connect() as connection:
        there = set((await connection.execute(select(inference.c.uid))).scalars())
        marks = await connection.execute(select(erasing.c.uid, erasing.c.scope))
        scopes = sorted((row.uid in there, row.scope) for row in marks)
    assert scopes == [(False, "inference"), (True, "input"), (True, "response")]
