"""Whatever comes as an event is refused by name, or its call is written without an error."""

import asyncio
import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.configuration import UpstreamEntry
from inference_store.proxy.event_intake import EventIntake
from tests.fake_captures import FakeCaptures
from tests.logged_events import JSON, TENSORS, V1, V2, document, kserve
from tests.properties import draw_json
from tests.settings import make_settings

from .captured import read_handed

LOGGER = UpstreamEntry(name="logger", cloud_events="/")
SETTINGS = make_settings(ProxySettings, proxy_cloud_events="/")
STRUCTURED = [(b"content-type", b"application/cloudevents+json")]
_NAMES = st.sampled_from([*document("request", b""), "data", "metadata", "traceparent"])
_VALUES = draw_json(st.none() | st.integers() | st.text(max_size=5), _NAMES, leaves=5)
_BODIES = st.sampled_from([*V1, *V2, *TENSORS, b"", b"{", b"\x1f\x8b\x08"]) | st.binary(max_size=8)
_CUT = st.tuples(_BODIES, st.integers(0, 200)).map(lambda pair: pair[0][: pair[1]])


def take(captures: FakeCaptures, headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    """Send an event, and stop the proxy; return the status of the answer."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        intake = EventIntake([LOGGER], captures, SETTINGS)  # type: ignore[arg-type]
        await intake.take(LOGGER, {"method": "POST", "headers": headers}, receive, send)
        intake.close()

    asyncio.run(run())
    if sent[0]["status"] != 200:
        assert json.loads(sent[1]["body"])["errors"][0]["path"]
    return int(sent[0]["status"])


def check(headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    captures = FakeCaptures()
    status = take(captures, headers, body)
    assert status in (200, 400)
    assert not captures.expected
    assert captures.finished or status == 400 or body.strip() == b"[]"
    for exchange, route in captures.finished:
        assert read_handed(exchange, route).events


@given(st.dictionaries(_NAMES, _VALUES, max_size=3), st.sampled_from(["request", "response"]), _CUT)
@example({"id": "\ud800", "inferenceservicename": "\ud800/../x", "metadata": "{}"}, "request", b"")
@example({"metadata": '{"Content-Encoding": ["gzip"], "a b": ["\\ud800"]}'}, "request", b"{}")
def test_any_event_in_structured_mode(changes: dict[str, Any], side: str, data: bytes) -> None:
    event = document(side, data) | changes
    check(STRUCTURED, json.dumps(event).encode())
    check(STRUCTURED, json.dumps([document(side, data), event]).encode("utf-16"))


@given(
    st.binary(max_size=20) | st.sampled_from([b"[]", b"[{}]", b'{"id": "\xff"}', b"\xff\xfe[\0"])
)
def test_any_document(body: bytes) -> None:
    check(STRUCTURED, body)


@given(
    st.dictionaries(_NAMES, st.binary(max_size=8), max_size=3), _CUT, st.sampled_from([JSON, "a"])
)
def test_any_event_in_binary_mode(changes: dict[str, bytes], body: bytes, kind: str) -> None:
    head = kserve("request", b"", kind=kind).split(b"\r\n")[1:-2]
    named = dict(line.lower().split(b": ", 1) for line in head)
    del named[b"content-length"]
    headers = named | {b"ce-" + name.encode(): value for name, value in changes.items()}
    check(list(headers.items()), body)
