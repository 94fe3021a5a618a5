"""What a protocol says of an exchange, and the header of metadata, stand in the events."""

from typing import Any

import orjson
import pytest

from inference_store.inference.metadata import read_metadata
from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.work import Work
from inference_store.proxy.protocols import PROTOCOLS, recognised
from inference_store.proxy.rules import Redaction, Rules
from tests.settings import make_settings
from tests.unit.proxy.protocols.exchanged import exchange

HEADER = "inference-store-metadata"
ITEMS = [
    {"key": "camera", "type": "string", "value": "hall"},
    {"key": "n", "type": "int", "value": "7"},
]
CHAT = {"model": "llama", "messages": [{"role": "user", "content": "How many?"}]}
SAID = {"choices": [{"index": 0, "message": {"content": "3"}, "finish_reason": "stop"}]}


def events(path: str, request: Any, answer: Any, **rules: Any) -> list[dict[str, Any]]:
    sent = [("content-type", "application/json"), (HEADER, orjson.dumps(ITEMS).decode())]
    went = exchange(path, request, answer, sent=sent)
    call = recognised(set(PROTOCOLS), "rest", "POST", path)
    assert call is not None
    preparation = Preparation(make_settings(CaptureSettings))
    chosen = preparation.choose(Work(went, call, Rules(**rules), "llama"))
    assert chosen is not None
    return [orjson.loads(each.value) for each in preparation.prepare(chosen, "p", 1).messages]


def metadata(event: dict[str, Any]) -> dict[str, Any]:
    entries = read_metadata(event["metadata"].encode()).entries
    return {entry.key: entry.value for entry in entries}


def test_the_headers_metadata_are_every_inferences() -> None:
    found = events("/v1/models/m:predict", {"instances": [1, 2]}, {"predictions": [3, 4]})
    assert [metadata(each)["camera"] for each in found] == ["hall", "hall"]


def test_the_bodys_metadata_win_over_the_headers() -> None:
    (found,) = events("/v1/chat/completions", CHAT | {"metadata": {"camera": "door"}}, SAID)
    assert (metadata(found)["camera"], metadata(found)["n"]) == ("door", "7")


@pytest.mark.parametrize(
    ("configured", "told"), [(None, "text_generation"), ("tabular", "tabular")]
)
def test_the_protocols_task_type_counts_where_none_is_configured(
    configured: str | None, told: str
) -> None:
    (found,) = events("/v1/chat/completions", CHAT, SAID, task_type=configured)
    assert found["task_type"] == told


def test_what_is_redacted_is_not_in_the_headers_metadata() -> None:
    redactions = (Redaction(what="metadata", name="camera"),)
    (found,) = events("/v1/chat/completions", CHAT, SAID, redactions=redactions)
    assert "camera" not in metadata(found)
    assert metadata(found)["n"] == "7"
