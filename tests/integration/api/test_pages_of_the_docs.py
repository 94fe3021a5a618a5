"""The examples and commands in the pages on queries, filters and deletion work as written."""

import json
import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from inference_store.api.answer import encode_json
from inference_store.query.cql2 import parse_text, to_json
from tests.integration.stored_inferences import NewInference

from .conftest import Api
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
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# pages with commands, and how many each has
PAGES = {"retention.md": 9, "erasures.md": 5, "holds.md": 4}


def test_every_example_has_its_number() -> None:
    filters = [example for kind, example, _ in _EXAMPLES if kind == "cql2"]
    assert len(re.findall(r"^```cql2$", _PAGE, re.MULTILINE)) == len(filters)
    assert len(filters) >= 30
    assert len(_EXAMPLES) == len(filters) + 3
    assert len(_RELATIVE) == 3


async def _count(api: Api, body: bytes) -> Any:
    answer = await api.post(f"{_BASE}/count", content=body, headers=_JSON)
    assert answer.status_code == 200, answer.text
    assert answer.json()["warnings"] == []
    return answer.json()["count"]


async def _count_each_way(api: Api, kind: str, example: str) -> list[Any]:
    """Return the count of an example by each way to send it: text, JSON and link."""
    if kind == "json":
        return [await _count(api, example.encode())]
    tree = encode_json({"filter": to_json(parse_text(example))})
    link = await api.read(_BASE, filter=example, limit=1000)
    text = json.dumps({"filter": example}).encode()
    return [await _count(api, text), await _count(api, tree), len(link["items"])]


@pytest.mark.long
async def test_examples_find_as_many_as_the_page_says(api: Api) -> None:
    await api.store(*make_frames())
    for kind, example, number in _EXAMPLES:
        counts = await _count_each_way(api, kind, example)
        assert counts == [number] * len(counts), example


async def test_resolves_relative_times_and_accepts_queryables(api: Api) -> None:
    await api.store(make_frames()[0])
    for example in _RELATIVE:
        page = await api.read(_BASE, filter=example)
        for resolved in page["resolved"]:
            assert resolved["expression"] in example
    for name in ("location", "frame_number", "metadata.frame_number"):
        body = json.dumps({"filter": f"{name} IS NOT NULL"}).encode()
        assert await _count(api, body) == 1, name


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
    for block in _BLOCK.findall((_DOCS / "how-to" / page).read_text()):
        words: list[str] = []
        for word in [*shlex.split(block.replace("\\\n", " "), comments=True), "curl"]:
            if word == "curl" and words[:1] == ["curl"]:
                yield _make_curl_parser().parse_args(words[1:])
            words = [word] if word == "curl" else [*words, word]


async def _send_command(api: Api, command: Namespace, last_id: str) -> dict[str, Any]:
    """Send a command and return its answer; `$ID` is the id of what was created last."""
    headers = dict(header.split(": ", 1) for header in command.headers)
    assert headers.pop("Authorization") == "Bearer $KEY"
    assert headers == ({} if command.body is None else _JSON)
    url = command.url.removeprefix("$API").replace("$ID", last_id)
    assert url.startswith("/v1/")
    # the end of a hold lies ahead in whatever year this runs
    body = command.body and command.body.replace("2027-", f"{datetime.now(UTC).year + 1}-")
    answer = await api.request(command.method, url, content=body, headers=headers)
    assert answer.is_success, (command, answer.text)
    return dict(answer.json())


@pytest.mark.parametrize("page", PAGES)
async def test_commands_succeed(api: Api, page: str) -> None:
    now = datetime.now(UTC)
    person_items = [("person_id", "string", "p-1044")]
    camera_items = [("data_source", "string", "hallway-camera-feed"), ("frame_number", "int", 7)]
    await api.store(NewInference("frame-1", now, person_items, model_id="hallway-detector"))
    await api.store(NewInference("frame-2", now, camera_items, model_id="cameras"))
    await api.call("PUT", "/v1/models/hallway-detector", {"project_id": "building"})
    last_id, count = "", 0
    for command in read_commands(page):
        body = await _send_command(api, command, last_id)
        count += 1
        if command.method == "PUT" and command.url.endswith("/retention-policy"):
            assert body["state"] == "in_force", command
        if command.method == "POST":
            last_id = body.get("id", last_id)
    assert count == PAGES[page]
