"""Who may stream: a page needs `read`, all that match needs `export` as well."""

import json

import httpx
import pytest

from .conftest import OPEN, SECRET, Keys

_LINES = {"Accept": "application/x-ndjson"}
_LINK, _QUERY = f"/v1/models/{OPEN}/inferences", f"/v1/models/{OPEN}/inferences/query"
_ACROSS = "/v1/inferences/query"
pytestmark = pytest.mark.usefixtures("two_models")


def models_of(answer: httpx.Response) -> set[str]:
    """The models whose inferences a stream has."""
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return {line["model_id"] for line in lines if "model_id" in line}


@pytest.mark.parametrize(("method", "path"), [("GET", _LINK), ("POST", _QUERY), ("POST", _ACROSS)])
async def test_a_reader_has_pages_and_no_streams(a_key: Keys, method: str, path: str) -> None:
    key = await a_key.make({"role": "reader"})
    body: dict[str, str] | None = {} if method == "POST" else None
    assert (await a_key.ask(key, method, path, body)).status_code == 200
    refused = await a_key.ask(key, method, path, body, _LINES)
    assert refused.status_code == 403
    assert "`export`" in refused.json()["detail"]
    analyst = await a_key.make({"role": "analyst"})
    streamed = await a_key.ask(analyst, method, path, body, _LINES)
    assert streamed.status_code == 200
    assert OPEN in models_of(streamed)


async def test_a_stream_of_several_models_has_those_that_may_be_exported(a_key: Keys) -> None:
    key = await a_key.make({"role": "reader"}, {"rights": ["export"], "model_id": OPEN})
    page = await a_key.ask(key, "POST", _ACROSS, {})
    assert {item["model_id"] for item in page.json()["items"]} == {OPEN, SECRET}
    streamed = await a_key.ask(key, "POST", _ACROSS, {}, _LINES)
    assert models_of(streamed) == {OPEN}
    assert page.json()["warnings"] == []
    *lines, end = [json.loads(line) for line in streamed.text.splitlines()]
    assert end["warnings"] == [f"1 model is left out: you lack the right `export` over {SECRET}."]
    rest = await a_key.ask(key, "POST", _ACROSS, {"cursor": lines[0]["cursor"]}, _LINES)
    assert json.loads(rest.text.splitlines()[-1])["warnings"] == end["warnings"]
    named = await a_key.ask(key, "POST", _ACROSS, {"model_ids": [OPEN, SECRET]}, _LINES)
    assert named.status_code == 403
    links = await a_key.ask(key, "POST", _ACROSS, {"include": ["urls"]}, _LINES)
    assert links.status_code == 403


async def test_a_right_without_read_shows_nothing(a_key: Keys) -> None:
    key = await a_key.make({"rights": ["export"], "model_id": OPEN})
    assert (await a_key.ask(key, "POST", _QUERY, {}, _LINES)).status_code == 404


async def test_a_stream_does_not_speak_of_models_that_may_not_be_read(a_key: Keys) -> None:
    key = await a_key.make({"role": "analyst", "model_id": OPEN})
    streamed = await a_key.ask(key, "POST", _ACROSS, {}, _LINES)
    assert models_of(streamed) == {OPEN}
    assert SECRET not in streamed.text
    assert json.loads(streamed.text.splitlines()[-1])["warnings"] == []
