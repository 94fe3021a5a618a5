"""The commands by which the pages on deletion ask the api are answered as they stand there."""

import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored import Made, store

_DOCS = Path(__file__).parents[3] / "docs"
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {"retention.md": 20, "erasures.md": 3, "holds.md": 4}


def _curl() -> ArgumentParser:
    """As much of it as the pages use; anything else ends the test."""
    parser = ArgumentParser("curl", allow_abbrev=False)
    parser.add_argument("-sS", action="store_true", required=True)
    parser.add_argument("-X", dest="method", default="GET")
    parser.add_argument("-H", dest="headers", action="append")
    parser.add_argument("-d", dest="body")
    parser.add_argument("url")
    return parser


def commands(page: str) -> Iterator[Namespace]:
    """Every `curl` in the page's blocks, as a shell would read it."""
    for block in _BLOCK.findall((_DOCS / page).read_text()):
        words: list[str] = []
        for word in [*shlex.split(block.replace("\\\n", " "), comments=True), "curl"]:
            if word == "curl" and words[:1] == ["curl"]:
                yield _curl().parse_args(words[1:])
            words = [word] if word == "curl" else [*words, word]


async def _answered(client: httpx.AsyncClient, asked: Namespace, last: str) -> dict[str, Any]:
    """Its answer. `$ID`: the id of what was last made."""
    headers = dict(each.split(": ", 1) for each in asked.headers)
    assert headers.pop("Authorization") == "Bearer $KEY"
    assert headers == ({} if asked.body is None else {"Content-Type": "application/json"})
    url = asked.url.removeprefix("$API").replace("$ID", last)
    assert url.startswith("/v1/")
    answer = await client.request(asked.method, url, content=asked.body, headers=headers)
    assert answer.is_success, (asked, answer.text)
    return dict(answer.json())


@pytest.mark.parametrize("page", PAGES)
async def test_each_command_is_answered(
    client: httpx.AsyncClient, engine: AsyncEngine, page: str
) -> None:
    now = datetime.now(UTC)
    of_a_person = [("person_id", "string", "p-1044")]
    of_a_camera = [("data_source", "string", "hallway-camera-feed"), ("frame_number", "int", 7)]
    await store(engine, Made("frame-1", now, of_a_person, model_id="hallway-detector"))
    await store(engine, Made("frame-2", now, of_a_camera, model_id="cameras"))
    await client.put("/v1/models/hallway-detector", json={"project_id": "building"})
    last, count = "", 0
    for asked in commands(page):
        body = await _answered(client, asked, last)
        count += 1
        if asked.method == "PUT" and asked.url.endswith("/retention-policy"):
            # of a limit by bytes no size is known yet
            assert body["state"] == ("pending" if "max_bytes" in str(asked) else "in_force")
        if asked.method == "POST":
            last = body.get("id", last)
    assert count == PAGES[page]
