"""The examples in the pages on queries and filters work, as text, as JSON and as a link."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.answer import encode_json
from inference_store.query.cql2 import parse_text, to_json
from tests.integration.stored_inferences import store

from .hallway import MODEL, make_frames

_DOCS = Path(__file__).parents[3] / "docs"
_PAGES = (_DOCS / "reference" / "filters.md", _DOCS / "how-to" / "query.md")
_PAGE = "\n".join(page.read_text() for page in _PAGES)
_EXAMPLES = [
    (kind, example.strip(), int(number))
    for kind, example, number in re.findall(
        r"^```(cql2|json)\n(.*?)^```\n\n(\d+) of the 100\.$", _PAGE, re.DOTALL | re.MULTILINE
    )
]
_RELATIVE = re.findall(r"^```cql2 relative\n(.*?)^```$", _PAGE, re.DOTALL | re.MULTILINE)
_BASE = f"/v1/models/{MODEL}/inferences"
_JSON = {"Content-Type": "application/json"}


def test_every_example_has_its_number() -> None:
    filters = [example for kind, example, _ in _EXAMPLES if kind == "cql2"]
    assert len(re.findall(r"^```cql2$", _PAGE, re.MULTILINE)) == len(filters)
    assert len(filters) >= 30
    assert len(_EXAMPLES) == len(filters) + 3


@pytest.mark.long
async def test_examples_find_as_many_as_the_page_says(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, *make_frames())
    counts_by_example = [
        await _count_each_way(client, kind, example) for kind, example, _ in _EXAMPLES
    ]
    expected = [
        [number] * len(counts)
        for (_, _, number), counts in zip(_EXAMPLES, counts_by_example, strict=True)
    ]
    assert dict(zip([e for _, e, _ in _EXAMPLES], counts_by_example, strict=True)) == dict(
        zip([e for _, e, _ in _EXAMPLES], expected, strict=True)
    )


async def test_resolves_relative_times_of_the_page(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, *make_frames())
    assert len(_RELATIVE) == 3
    for example in _RELATIVE:
        answer = await client.get(_BASE, params={"filter": example})
        assert answer.status_code == 200, answer.text
        for resolved in answer.json()["resolved"]:
            assert resolved["expression"] in example


async def _count_each_way(client: httpx.AsyncClient, kind: str, example: str) -> list[Any]:
    """Return the count of an example by each way to send it."""
    if kind == "json":
        return [await _count(client, example.encode())]
    tree = encode_json({"filter": to_json(parse_text(example))})
    link = await client.get(_BASE, params={"filter": example, "limit": 1000})
    assert link.status_code == 200, link.text
    text = json.dumps({"filter": example}).encode()
    return [await _count(client, text), await _count(client, tree), len(link.json()["items"])]


async def _count(client: httpx.AsyncClient, body: bytes) -> Any:
    answer = await client.post(f"{_BASE}/count", content=body, headers=_JSON)
    assert answer.status_code == 200, answer.text
    assert answer.json()["warnings"] == []
    return answer.json()["count"]


@pytest.mark.parametrize("name", ["location", "frame_number", "metadata.frame_number"])
async def test_filter_accepts_queryables(
    client: httpx.AsyncClient, engine: AsyncEngine, name: str
) -> None:
    await store(engine, *make_frames()[:1])
    body = json.dumps({"filter": f"{name} IS NOT NULL"}).encode()
    assert await _count(client, body) == 1
