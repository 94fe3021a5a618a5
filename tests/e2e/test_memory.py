"""The memory of the api does not grow with the questions that it was asked."""

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored_inferences import NewInference, at, store
from tests.servers.fixtures import MakeEnvironment
from tests.servers.ports import free_port
from tests.service_process import Service

pytestmark = pytest.mark.real_minio
SEED = 7
QUESTIONS = 2000
# the first answers fill the pool and the caches
SETTLED = 200
MOST_MIB = 30
_LEAVES = (
    "camera = 'c{}'",
    "camera IN ('c{}', 'b')",
    "camera LIKE 'c{}%'",
    "frame > {}",
    "frame BETWEEN {} AND 900",
    "inference_id = 'i{}'",
    "prediction(label = 'person' AND score > 0.{})",
    "received_at > TIMESTAMP('2026-01-0{}T00:00:00Z')",
)
# of five questions three are pages
_QUESTIONS = ("query", "query", "count", "query", "aggregate")


def make_filters(moments: random.Random) -> Iterator[str]:
    """Yield filters, no two of which have the same shape."""
    shapes = set()
    while True:
        shape = _make_tree(moments, depth=2)
        if shape not in shapes:
            shapes.add(shape)
            yield shape.replace("{}", str(moments.randint(1, 9)))


def _make_tree(moments: random.Random, depth: int) -> str:
    if depth == 0 or moments.random() < 0.2:
        return moments.choice(_LEAVES)
    if moments.random() < 0.2:
        return f"NOT ({_make_tree(moments, depth - 1)})"
    word = moments.choice((" AND ", " OR "))
    return f"({word.join(_make_tree(moments, depth - 1) for _ in range(moments.randint(2, 3)))})"


def make_body(question: str, filter: str) -> dict[str, object]:
    if question == "aggregate":
        return {
            "filter": filter,
            "measures": [{"function": "count"}],
            "group_by": [{"of": "camera"}],
        }
    return {"filter": filter} | ({"limit": 5} if question == "query" else {})


@pytest.mark.timeout(900)
async def test_memory_is_stable_over_2000_different_filters(
    engine: AsyncEngine, service_environment: MakeEnvironment, tmp_path: Path
) -> None:
    print(f"seed {SEED}")
    stored = [
        NewInference(f"i{n}", at(n), [("camera", "string", f"c{n}"), ("frame", "int", str(n))])
        for n in range(100)
    ]
    await store(engine, *stored)
    port = free_port()
    environment = service_environment(AUTH="off", API_RATE_LIMIT_PER_MINUTE="0", API_PORT=str(port))
    with Service("api", environment, tmp_path) as api:
        await asyncio.to_thread(api.wait_ready)
        process = psutil.Process(api.process.pid)
        base = f"http://127.0.0.1:{port}/v1/models/model/inferences"
        before = 0
        questions = zip(
            make_filters(random.Random(SEED)), itertools.cycle(_QUESTIONS), strict=False
        )
        async with httpx.AsyncClient(timeout=60) as client:
            for number, (filter, question) in enumerate(itertools.islice(questions, QUESTIONS)):
                if number == SETTLED:
                    before = process.memory_info().rss
                answer = await client.post(f"{base}/{question}", json=make_body(question, filter))
                assert answer.status_code == 200, (question, filter, answer.text)
        grown = (process.memory_info().rss - before) / 2**20
        print(f"{before / 2**20:.0f} MiB and {grown:.1f} more")
        assert grown <= MOST_MIB
