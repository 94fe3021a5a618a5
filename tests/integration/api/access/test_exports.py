"""Who may stream: a page needs `read`, a stream of all matches needs `export` too."""

import json

import httpx
import pytest

from .conftest import OPEN, SECRET, Keys

_LINES = {"Accept": "application/x-ndjson"}
_LINK, _QUERY = f"/v1/models/{OPEN}/inferences", f"/v1/models/{OPEN}/inferences/query"
_ACROSS = "/v1/inferences/query"
pytestmark = pytest.mark.usefixtures("two_models")


def read_model_ids(answer: httpx.Response) -> set[str]:
    """Return the models whose inferences a stream contains."""
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return {line["model_id"] for line in lines if "model_id" in line}


@pytest.mark.parametrize(("method", "path"), [("GET", _LINK), ("POST", _QUERY), ("POST", _ACROSS)])
async def test_reader_may_page_but_not_stream(keys: Keys, method: str, path: str) -> None:
    key = await keys.make({"role": "reader"})
    body: dict[str, str] | None = {} if method == "POST" else None
    assert (await keys.ask(key, method, path, body)).status_code == 200
    refused = await keys.ask(key, method, path, body, _LINES)
    assert refused.status_code == 403
    assert "`export`" in refused.json()["detail"]
    analyst = await keys.make({"role": "analyst"})
    streamed = await keys.ask(analyst, method, path, body, _LINES)
    assert streamed.status_code == 200
    assert OPEN in read_model_ids(streamed)


async def test_stream_contains_only_exportable_models(keys: Keys) -> None:
    key = await keys.make({"role": "reader"}, {"rights": ["export"], "model_id": OPEN})
    page = await keys.ask(key, "POST", _ACROSS, {})
    assert {item["model_id"] for item in page.json()["items"]} == {OPEN, SECRET}
    streamed = await keys.ask(key, "POST", _ACROSS, {}, _LINES)
    assert read_model_ids(streamed) == {OPEN}
    assert page.json()["warnings"] == []
    *lines, end = [json.loads(line) for line in streamed.text.splitlines()]
    assert end["warnings"] == [f"1 model is left out: you lack the right `export` over {SECRET}."]
    rest = await keys.ask(key, "POST", _ACROSS, {"cursor": lines[0]["cursor"]}, _LINES)
    assert json.loads(rest.text.splitlines()[-1])["warnings"] == end["warnings"]
    refused = await keys.ask(key, "POST", _ACROSS, {"model_ids": [OPEN, SECRET]}, _LINES)
    assert refused.status_code == 403
    refused_links = await keys.ask(key, "POST", _ACROSS, {"include": ["urls"]}, _LINES)
    assert refused_links.status_code == 403


async def test_export_without_read_shows_nothing(keys: Keys) -> None:
    key = await keys.make({"rights": ["export"], "model_id": OPEN})
    assert (await keys.ask(key, "POST", _QUERY, {}, _LINES)).status_code == 404


async def test_stream_does_not_mention_unreadable_models(keys: Keys) -> None:
    key = await keys.make({"role": "analyst", "model_id": OPEN})
    streamed = await keys.ask(key, "POST", _ACROSS, {}, _LINES)
    assert read_model_ids(streamed) == {OPEN}
    assert SECRET not in streamed.text
    assert json.loads(streamed.text.splitlines()[-1])["warnings"] == []
