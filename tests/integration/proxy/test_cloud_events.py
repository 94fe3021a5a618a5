"""Request loggers' events, from the bytes on the wire to what is written of their calls."""

import gzip
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from inference_store.platform.metrics import SHOWN
from inference_store.proxy.configuration import Redaction, Rules
from tests.fake_captures import FakeCaptures
from tests.logged_events import (
    BINARY,
    ID,
    TENSORS,
    TOKEN,
    V1,
    V2,
    document,
    kserve,
    seldon,
    structured,
)
from tests.unit.proxy.capture.captured import Captured, read_handed

from .rest_server import connect, encode_request, proxy, send_raw, upstream

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Intake:
    port: int
    captures: FakeCaptures

    async def send(self, *requests: bytes) -> list[int]:
        """Send requests, one after the other; return the statuses of the answers."""
        return [(await self.ask(request))[0] for request in requests]

    async def ask(self, request: bytes) -> tuple[int, Any]:
        """Send a request; return the status, and the problem if it is refused."""
        async with connect(self.port) as caller:
            caller.send(request)
            head = await caller.read_until()
            status = int(head.split()[1])
            return status, head if status == 200 else json.loads(await caller.read_until(b"]}"))

    async def captured(self, rules: Rules | None = None) -> Captured:
        """Return what the capture process writes of the next call."""
        exchange = await self.captures.exchange()
        route = next(route for each, route in self.captures.finished if each is exchange)
        return read_handed(exchange, route, rules)


@asynccontextmanager
async def start_intake(
    captures: FakeCaptures | None = None, **settings: Any
) -> AsyncIterator[Intake]:
    """Start a proxy that takes events, in front of a model server that nobody calls."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text="the model server")

    captures = captures or FakeCaptures()
    settings = {"proxy_cloud_events_token": TOKEN, **settings}
    async with upstream(answer) as direct, proxy(direct, captures, events=settings) as port:
        yield Intake(port, captures)


def count(outcome: str) -> float:
    labels = {"outcome": outcome}
    return SHOWN["proxy"].get_sample_value("inference_store_proxy_cloud_events_total", labels) or 0


async def test_a_call_of_kserves_logger_is_captured_as_a_proxied_one() -> None:
    """Its namespace and the headers that it was told to send can become metadata, or be redacted;
    what else the proxy is asked passes."""
    sent = {"Traceparent": [TRACE], "X-Tenant": ["acme"], "Cookie": ["crumbs"]}
    redaction = Redaction(what="header", name="x-tenant", how="hash")
    headers = ("ce-namespace", "x-tenant")
    rules = Rules(upstream="logger", redactions=(redaction,), metadata_headers=headers)
    async with start_intake() as intake:
        request, answer = kserve("request", V2[0], metadata=sent), kserve("response", V2[1])
        assert await intake.send(request, answer) == [200, 200]
        captured = await intake.captured(rules)
        other = await send_raw(intake.port, encode_request("POST", "/cloudevents/more"))
        assert other.endswith(b"the model server")
    (event,) = captured.documents
    assert (event["model_id"], event["protocol"], event["model_version"]) == (
        "sklearn-iris",
        "v2",
        "v1",
    )
    assert (event["inference_id"], event["aliases"]) == ("a-1", [ID])
    assert (event["ok"], event["http_status"], event["trace_id"]) == (True, 200, TRACE[3:35])
    assert event["request_received_at"].startswith("2026-11-30T14:12:58.321859")
    metadata = captured.find_metadata()
    assert captured.prepared.problems == ()
    assert "default" in json.dumps(metadata)
    assert not captured.holds(b"acme")
    assert not captured.holds(b"crumbs")
    assert captured.requests[0]["path"] == "/v2/models/sklearn-iris/infer"
    assert captured.rebuild() == [V2[0]]


async def test_the_bodies_tell_protocol_gzip_and_where_json_ends() -> None:
    """KServe's logger loses the headers that say so, and sends the request's type of an answer."""
    named = {"Inference-Header-Content-Length": [str(len(TENSORS[0]) - 8)]}
    chat = b'{"messages":[{"role":"user","content":"Hello?"}]}'
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"Hi."}}]}\n\ndata: [DONE]\n\n'
    loggeds: Sequence[tuple[bytes, bytes, dict[str, Any], str, tuple[str, ...]]] = (
        (*V1, {}, "kserve-v1", ()),
        (gzip.compress(V1[0]), gzip.compress(V1[1]), {}, "kserve-v1", ()),
        (*TENSORS, {"kind": BINARY}, "v2", ("request_length_lost", "response_length_lost")),
        (*TENSORS, {"kind": BINARY, "metadata": named}, "v2", ("response_length_lost",)),
        # raw tensors, whose JSON is empty: kept as they are
        (TENSORS[0][-8:], TENSORS[1], {"kind": BINARY}, "v2", ("request_not_json",)),
        (chat, chunk, {}, "openai", ()),
        (b'{"data":{"ndarray":[1]}}', b'{"data":{"ndarray":[2]}}', {}, "raw", ()),
        (b"\x89PNG", b"a cat", {"kind": "image/png"}, "raw", ()),
        (b'{"inputs":"text"}', b"[1, 2]", {}, "raw", ()),
    )
    written: list[Captured] = []
    async with start_intake() as intake:
        for at, (body, answer, options, protocol, problems) in enumerate(loggeds):
            own = {"id": f"call-{at}", "kind": options.get("kind", "application/json")}
            request = kserve("request", body, metadata=options.get("metadata"), **own)
            assert await intake.send(request, kserve("response", answer, **own)) == [200, 200]
            captured = await intake.captured()
            assert captured.documents[0]["protocol"] == protocol
            assert captured.documents[0]["ok"]
            assert set(problems) <= set(captured.prepared.problems), at
            assert bool(problems) == bool(captured.prepared.problems), captured.prepared.problems
            written.append(captured)
    assert written[0].find_response() == written[1].find_response() == json.loads(V1[1])
    for captured in written[2:4]:
        assert captured.data[0] == TENSORS[0][-8:]
        assert captured.find_response()["outputs"][0]["data"] == [1, 2]
        assert captured.rebuild() == [TENSORS[0]]
    assert written[4].data[0] == TENSORS[0][-8:]
    assert "Hi." in json.dumps(written[5].find_response())
    assert written[7].data[0] == b"\x89PNG"


async def test_halves_join_in_any_order_and_mode_and_count_once() -> None:
    """Those that come again are recognised, also after their call is captured. Seldon's have a
    request's id in common."""
    before = {outcome: count(outcome) for outcome in ("joined", "alone", "duplicate")}
    batch = [document("response", {"predictions": [1]}, id="b"), document("request", V1[0], id="b")]
    twice = [kserve("response", V1[1]), kserve("response", V1[1]), kserve("request", V1[0])]
    async with start_intake() as intake:
        assert await intake.send(*twice, twice[0], twice[2]) == [200] * 5
        assert await intake.send(structured(batch, "application/cloudevents-batch+json")) == [200]
        assert await intake.send(structured(batch[0])) == [200]
        packed = gzip.compress(json.dumps(document("request", [1], id="c")).encode())
        coded = structured(packed, EVENT, "Content-Encoding: gzip")
        text = document("response", "cat", id="c", datacontenttype="text/plain; charset=utf-8")
        assert await intake.send(coded, structured(text)) == [200, 200]
        logged = [seldon("request", V2[0], id="e-1"), seldon("response", V2[1], id="e-2")]
        assert await intake.send(*logged) == [200, 200]
        exchanges = list(intake.captures.exchanges)
        (event,) = [(await intake.captured()).documents[0] for _ in range(4)][-1:]
    assert [(each.request.bytes, each.response.bytes) for each in exchanges] == [
        V1,
        (V1[0], b'{"predictions": [1]}'),
        (b"[1]", b"cat"),
        V2,
    ]
    assert (event["model_id"], event["aliases"]) == ("wines.classifier", ["puid-1"])
    after = {outcome: count(outcome) - number for outcome, number in before.items()}
    assert after == {"joined": 8, "alone": 0, "duplicate": 4}


async def test_a_half_whose_other_never_comes_is_captured_alone() -> None:
    """After its time, when another call has its id, when more waits than may, and at the end."""
    before = count("alone")
    async with start_intake(proxy_cloud_events_seconds=0.05) as intake:
        assert await intake.send(kserve("request", V2[0])) == [200]
        request = await intake.captured()
        assert await intake.send(kserve("response", V2[1])) == [200]
        answer = await intake.captured()
    (event,) = request.documents
    assert (event["ok"], event.get("http_status"), event["inference_id"]) == (False, None, "a-1")
    assert "no answer was logged" in event["error"]
    assert request.prepared.problems == ("response_missing",)
    assert request.rebuild() == [V2[0]]
    (event,) = answer.documents
    assert (event["ok"], event["http_status"], event["model_version"]) == (True, 200, "v1")
    assert answer.prepared.problems == ("request_missing",)
    assert "data_hash" not in event
    later = kserve("request", b"{}", time="2026-11-30T14:12:59Z")
    large = [kserve("request", V1[0] + b" " * 600, id=f"large-{at}") for at in range(3)]
    bounds: dict[str, Any] = {"proxy_capture_bytes": 2000, "proxy_body_bytes": 2000}
    async with start_intake(**bounds) as intake:
        assert await intake.send(kserve("request", V1[0]), later) == [200, 200]
        assert [each.request.bytes for each in intake.captures.exchanges] == [V1[0]]
        assert await intake.send(*large) == [200] * 3
        assert [each.request.size for each in intake.captures.exchanges[1:]] == [2, 637, 637]
    assert [each.request.size for each in intake.captures.exchanges[4:]] == [637]
    assert count("alone") - before == 7


EVENT = "application/cloudevents+json"
REFUSALS = (
    (
        kserve("request", V1[0]).replace(b"bG9nZ2VyOnNlIGNyZXQ=", b"bG9nZ2VyOm5v"),
        401,
        "authorization",
    ),
    (structured({}).replace(b"Authorization", b"X-Other"), 401, "authorization"),
    (kserve("request", b"").replace(b"POST", b"GET "), 405, "method"),
    (kserve("request", b"").replace(b"Ce-Specversion", b"X-Version"), 400, "ce-specversion"),
    (kserve("request", b"").replace(b"Ce-Id", b"Id"), 400, "ce-id"),
    (kserve("feedback", b"", time="x"), 400, "ce-type"),
    (kserve("request", b"", time="tomorrow"), 400, "ce-time"),
    (
        kserve("request", b"").replace(b"Ce-Inferenceservicename", b"Name"),
        400,
        "ce-inferenceservicename",
    ),
    (structured(b"{no"), 400, "body"),
    (structured(b"\xff\xfe"), 400, "body"),
    (structured({}), 400, "specversion"),
    (structured([document("request"), 7]), 400, "[1].specversion"),
    (structured(document("request", data_base64="%")), 400, "data_base64"),
    (structured(document("request", source={})), 400, "source"),
    (
        structured({}, "application/cloudevents+json", "Content-Encoding: br"),
        400,
        "content-encoding",
    ),
)


@pytest.mark.parametrize(("request_bytes", "status", "where"), REFUSALS, ids=range(len(REFUSALS)))
async def test_what_is_no_event_is_refused_by_name(
    request_bytes: bytes, status: int, where: str
) -> None:
    async with start_intake() as intake:
        answered, problem = await intake.ask(request_bytes)
    assert (answered, problem["status"], problem["errors"][0]["path"]) == (status, status, where)


async def test_the_good_events_of_a_batch_are_taken_and_the_others_named() -> None:
    """Up to the hundredth mistake; a batch that comes again is taken once."""
    halves = [document("request", V1[0], id="b"), document("response", V1[1], id="b")]
    batch = [halves[0], 7, document("request", id="c", source={}), halves[1]]
    kind, before = "application/cloudevents-batch+json", count("refused")
    async with start_intake() as intake:
        for _ in range(2):
            status, problem = await intake.ask(structured(batch, kind))
            assert (status, problem["status"]) == (400, 400)
            paths = [each["path"] for each in problem["errors"]]
            assert paths == ["[1].specversion", "[2].source"]
        captured = await intake.captured()
        status, problem = await intake.ask(structured([7] * 200 + halves, kind))
        assert (status, len(problem["errors"])) == (400, 100)
        assert await intake.send(structured([], kind)) == [200]
        assert len(intake.captures.finished) == 1
    assert captured.documents[0]["ok"]
    assert count("refused") - before == 104


async def test_large_events_are_flagged_and_those_without_room_come_again() -> None:
    """A body over the cap is left out, as of a proxied call; an envelope over it is refused."""
    big = b"[" + b"1," * 5000 + b"1]"
    captures = FakeCaptures(most=9000, refused=[2])
    async with start_intake(captures, proxy_body_bytes=9000) as intake:
        assert await intake.send(kserve("request", big), kserve("response", V1[1])) == [200, 200]
        captured = await intake.captured()
        status, problem = await intake.ask(kserve("request", b"x" * (1 << 20), id="d"))
        assert (status, problem["errors"][0]["path"]) == (503, "body")
        assert await intake.send(kserve("request", V1[0], id="d")) == [200]
        status, problem = await intake.ask(structured(document("response", big, id="d")))
        assert (status, problem["errors"][0]["path"]) == (413, "body")
        async with connect(intake.port) as caller:
            caller.send(kserve("response", V1[1], id="d")[:-1])
        assert await intake.send(kserve("response", V1[1], id="d")) == [200]
        joined = await intake.captured()
    assert captured.prepared.problems == ("request_over_cap",)
    assert joined.documents[0]["ok"]
