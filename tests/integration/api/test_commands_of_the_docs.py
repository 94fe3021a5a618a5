"""The commands in the pages on deletion work as written."""

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

from tests.integration.stored_inferences import NewInference, store

_DOCS = Path(__file__).parents[3] / "docs" / "how-to"
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {"retention.md": 20, "erasures.md": 3, "holds.md": 4}


def _make_curl_parser() -> ArgumentParser:
    """Return a parser of the options that the pages use; any other option fails the test."""
    parser = ArgumentParser("curl", allow_abbrev=False)
    parser.add_argument("-sS", action="store_true", required=True)
    parser.add_argument("-X", dest="method", default="GET")
    parser.add_argument("-H", dest="headers", action="append")
    parser.add_argument("-d", dest="body")
    parser.add_argument("url")
    return parser


def read_commands(page: str) -> Iterator[Namespace]:
    """Yield every `curl` command in a page's blocks, as a shell would read it."""
    for block in _BLOCK.findall((_DOCS / page).read_text()):
        words: list[str] = []
        for word in [*shlex.split(block.replace("\\\n", " "), comments=True), "curl"]:
            if word == "curl" and words[:1] == ["curl"]:
                yield _make_curl_parser().parse_args(words[1:])
            words = [word] if word == "curl" else [*words, word]


async def _send_command(
    client: httpx.AsyncClient, command: Namespace, last_id: str
) -> dict[str, Any]:
    """Send a command and return its answer; `$ID` is the id of what was created last."""
    headers = dict(header.split(": ", 1) for header in command.headers)
    assert headers.pop("Authorization") == "Bearer $KEY"
    assert headers == ({} if command.body is None else {"Content-Type": "application/json"})
    url = command.url.removeprefix("$API").replace("$ID", last_id)
    assert url.startswith("/v1/")
    # the end of a hold lies ahead in whatever year this runs
    body = command.body and command.body.replace("2027-", f"{datetime.now(UTC).year + 1}-")
    answer = await client.request(command.method, url, content=body, headers=headers)
    assert answer.is_success, (command, answer.text)
    return dict(answer.json())


@pytest.mark.parametrize("page", PAGES)
async def test_commands_succeed(client: httpx.AsyncClient, engine: AsyncEngine, page: str) -> None:
    now = datetime.now(UTC)
    person_items = [("person_id", "string", "p-1044")]
    camera_items = [("data_source", "string", "hallway-camera-feed"), ("frame_number", "int", 7)]
    await store(engine, NewInference("frame-1", now, person_items, model_id="hallway-detector"))
    await store(engine, NewInference("frame-2", now, camera_items, model_id="cameras"))
    await client.put("/v1/models/hallway-detector", json={"project_id": "building"})
    last_id, count = "", 0
    for command in read_commands(page):
        body = await _send_command(client, command, last_id)
        count += 1
        if command.method == "PUT" and command.url.endswith("/retention-policy"):
            # a limit in bytes is pending until all sizes are known
            assert body["state"] == ("pending" if "max_bytes" in str(command) else "in_force")
        if command.method == "POST":
            last_id = body.get("id", last_id)
    assert count == PAGES[page]
