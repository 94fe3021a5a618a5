"""Events hold what a protocol reads of an exchange, and the header of metadata."""

from typing import Any

import orjson
import pytest

from inference_store.inference.metadata import read_metadata
from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.work import Work
from inference_store.proxy.protocols import PROTOCOLS, recognise_call
from inference_store.proxy.rules import Redaction, Rules
from tests.settings import make_settings
from tests.unit.proxy.protocols.exchanged import make_exchange

HEADER = "inference-store-metadata"
ITEMS = [
    {"key": "camera", "type": "string", "value": "hall"},
    {"key": "n", "type": "int", "value": "7"},
]
CHAT = {"model": "llama", "messages": [{"role": "user", "content": "How many?"}]}
CHAT_ANSWER = {"choices": [{"index": 0, "message": {"content": "3"}, "finish_reason": "stop"}]}


def make_events(path: str, request: Any, answer: Any, **rules: Any) -> list[dict[str, Any]]:
    sent = [("content-type", "application/json"), (HEADER, orjson.dumps(ITEMS).decode())]
    sample = make_exchange(path, request, answer, sent=sent)
    call = recognise_call(set(PROTOCOLS), "rest", "POST", path)
    assert call is not None
    preparation = Preparation(make_settings(CaptureSettings))
    chosen = preparation.choose(Work(sample, call, Rules(**rules), "llama"))
    assert chosen is not None
    return [orjson.loads(message.value) for message in preparation.prepare(chosen, "p", 1).messages]


def read_event_metadata(event: dict[str, Any]) -> dict[str, Any]:
    entries = read_metadata(event["metadata"].encode()).entries
    return {entry.key: entry.value for entry in entries}


def test_the_headers_metadata_are_every_inferences() -> None:
    events_found = make_events(
        "/v1/models/m:predict", {"instances": [1, 2]}, {"predictions": [3, 4]}
    )
    assert [read_event_metadata(event)["camera"] for event in events_found] == ["hall", "hall"]


def test_the_bodys_metadata_win_over_the_headers() -> None:
    (event,) = make_events(
        "/v1/chat/completions", CHAT | {"metadata": {"camera": "door"}}, CHAT_ANSWER
    )
    assert (read_event_metadata(event)["camera"], read_event_metadata(event)["n"]) == ("door", "7")


@pytest.mark.parametrize(
    ("configured", "expected"), [(None, "text_generation"), ("tabular", "tabular")]
)
def test_uses_the_protocols_task_type_if_none_is_configured(
    configured: str | None, expected: str
) -> None:
    (event,) = make_events("/v1/chat/completions", CHAT, CHAT_ANSWER, task_type=configured)
    assert event["task_type"] == expected


def test_redacted_keys_are_not_in_the_headers_metadata() -> None:
    redactions = (Redaction(what="metadata", name="camera"),)
    (event,) = make_events("/v1/chat/completions", CHAT, CHAT_ANSWER, redactions=redactions)
    assert "camera" not in read_event_metadata(event)
    assert read_event_metadata(event)["n"] == "7"
