"""Who may stream, export and read blobs: all matches need `export`, inputs `read_inputs`."""

import json

import httpx
import pytest

from tests.integration.api.conftest import LINES, Api
from tests.integration.stored_inferences import NewInference, at
from tests.settings import TOKEN

from .conftest import OPEN, SECRET, Keys

_LINK, _QUERY = f"/v1/models/{OPEN}/inferences", f"/v1/models/{OPEN}/inferences/query"
_ACROSS = "/v1/inferences/query"
_EXPORTS = f"/v1/models/{OPEN}/exports"


def read_model_ids(answer: httpx.Response) -> set[str]:
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return {line["model_id"] for line in lines if "model_id" in line}


@pytest.mark.usefixtures("two_models")
async def test_reader_may_page_but_not_stream(keys: Keys) -> None:
    reader, analyst = await keys.make({"role": "reader"}), await keys.make({"role": "analyst"})
    for method, path in (("GET", _LINK), ("POST", _QUERY), ("POST", _ACROSS)):
        body: dict[str, str] | None = {} if method == "POST" else None
        await keys.call(reader, method, path, body, status=200)
        refused = await keys.ask(reader, method, path, body, LINES)
        assert refused.status_code == 403, path
        assert "`export`" in refused.json()["detail"], path
        streamed = await keys.ask(analyst, method, path, body, LINES)
        assert streamed.status_code == 200, path
        assert OPEN in read_model_ids(streamed), path


@pytest.mark.usefixtures("two_models")
async def test_stream_contains_and_mentions_only_exportable_models(keys: Keys) -> None:
    key = await keys.make({"role": "reader"}, {"rights": ["export"], "model_id": OPEN})
    page = await keys.call(key, "POST", _ACROSS, {})
    assert {item["model_id"] for item in page["items"]} == {OPEN, SECRET}
    assert page["warnings"] == []
    streamed = await keys.ask(key, "POST", _ACROSS, {}, LINES)
    assert read_model_ids(streamed) == {OPEN}
    *lines, end = [json.loads(line) for line in streamed.text.splitlines()]
    assert end["warnings"] == [f"1 model is left out: you lack the right `export` over {SECRET}."]
    rest = await keys.ask(key, "POST", _ACROSS, {"cursor": lines[0]["cursor"]}, LINES)
    assert json.loads(rest.text.splitlines()[-1])["warnings"] == end["warnings"]
    for body in ({"model_ids": [OPEN, SECRET]}, {"include": ["urls"]}):
        assert (await keys.ask(key, "POST", _ACROSS, body, LINES)).status_code == 403, body
    blind = await keys.make({"rights": ["export"], "model_id": OPEN})
    assert (await keys.ask(blind, "POST", _QUERY, {}, LINES)).status_code == 404
    key = await keys.make({"role": "analyst", "model_id": OPEN})
    streamed = await keys.ask(key, "POST", _ACROSS, {}, LINES)
    assert read_model_ids(streamed) == {OPEN}
    assert SECRET not in streamed.text
    assert json.loads(streamed.text.splitlines()[-1])["warnings"] == []


@pytest.mark.usefixtures("two_models")
async def test_exports_with_blobs_need_the_right_to_see_inputs(keys: Keys) -> None:
    """Links or copies: to request them, and to read them."""
    exporter = await keys.make({"rights": ["read", "export"], "model_id": OPEN})
    analyst = await keys.make({"role": "analyst", "model_id": OPEN})
    for body in ({"blobs": "links"}, {"blobs": "copy"}, {"format": "webdataset"}):
        refused = await keys.call(exporter, "POST", _EXPORTS, body, status=403)
        assert "`read_inputs`" in refused["detail"], body
        await keys.call(exporter, "POST", _EXPORTS, {**body, "blobs": "none"}, status=202)
        export = await keys.call(analyst, "POST", _EXPORTS, body, status=202)
        path = f"/v1/exports/{export['id']}"
        for route in ("/parts", "/parts/1"):
            await keys.call(exporter, "GET", path + route, status=403)
        await keys.call(exporter, "GET", path, status=200)
        await keys.call(analyst, "GET", f"{path}/parts", status=200)


async def test_a_response_that_is_an_input_needs_their_right(keys: Keys, guarded: Api) -> None:
    places: dict[str | None, str | None] = {name: guarded.put_blob(name, b"[]") for name in "abc"}
    places[None] = None
    reader = await keys.make({"rights": ["read"]})
    inputs = await keys.make({"rights": ["read", "read_inputs"]})
    audited = 0
    cases: list[tuple[str | None, str, str | None, bool]] = [
        ("a", "b", "c", False),
        ("a", "a", "c", True),
        ("a", "c", "c", True),
        (None, "b", None, False),
        (None, "c", "c", True),
    ]
    for n, (data, response, metadata, is_input) in enumerate(cases):
        references = places[data], places[response], places[metadata]
        await guarded.store(NewInference(str(n), at(n), model_id=OPEN, keys=references))
        path = f"/v1/models/{OPEN}/inferences/{n}/response"
        refused = await keys.ask(reader, "GET", path)
        assert refused.status_code == (403 if is_input else 200), cases[n]
        assert ("`read_inputs`" in refused.text) == is_input, cases[n]
        answer = await keys.ask(inputs, "GET", path)
        assert (answer.status_code, answer.content) == (200, b"[]"), cases[n]
        # the audit records it, like every read of an input
        audited += is_input
        entries = (await keys.call(TOKEN, "GET", "/v1/audit"))["items"]
        assert [entry["action"] for entry in entries] == ["data_read"] * audited, cases[n]
