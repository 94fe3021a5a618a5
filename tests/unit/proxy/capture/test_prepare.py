"""From an exchange to blobs and events: read back by what the ingester reads them with."""

from io import BytesIO
from operator import attrgetter
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from inference_store.index.sidecars import without_request
from inference_store.inference.content_types import content_type_of
from inference_store.inference.metadata import read_metadata
from inference_store.proxy.capture.prepare import (
    ID_HEADER,
    id_for_answer,
    ids_of,
    size_of,
)
from inference_store.proxy.capture.segments import INLINE_BYTES
from inference_store.proxy.configuration import Rules
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import PROTOCOLS, Call, Inference, Protocol, Reading
from tests.exchanges import CALL, exchange, png, request_body, response_body
from tests.unit.inference.metadata.samples import make_item

from .captured import Captured, capture

LIST = [make_item("camera", "string", "hall"), make_item("n", "int", "7")]


def prepare(
    sample: Exchange, rules: Rules | None = None, *, model: str = "detector", **settings: Any
) -> Captured:
    return capture(sample, rules, call=CALL, model=model, **settings)


def test_metadata_are_read_back_from_the_blob_and_from_the_event() -> None:
    headers = [("x-camera", "north")]
    rules = Rules(metadata_headers=("x-camera",))
    sections = {"standard_metadata": {}, "extended_metadata": LIST}
    for metadata in (LIST, orjson.dumps(LIST).decode(), sections, orjson.dumps(sections).decode()):
        body = request_body(metadata=metadata)
        captured = prepare(exchange(body, request_headers=headers), rules)
        (whole,) = captured.list_blobs("metadata")
        for source in (whole, captured.events[0].inline_metadata, without_request(whole)):
            result = read_metadata(source)
            assert (result.problem, result.flags) == (None, ())
            assert {(entry.key, entry.value, entry.section) for entry in result.entries} == {
                ("camera", "hall", "extended"),
                ("n", "7", "extended"),
                ("x-camera", "north", "standard"),
            }, metadata


def test_an_envelope_keeps_exact_numbers_and_lenient_json() -> None:
    items = b'[{"key": "k", "type": "float", "value": 1.10000000000000000000001},'
    items += b' {"key": "l", "type": "float", "value": NaN}]'
    body = b'{"inputs": [{"data": ["AA=="], "parameters": {"metadata": %s}}]}' % items
    metadata = read_metadata(prepare(exchange(body)).list_blobs("metadata")[0])
    assert {entry.key: entry.value for entry in metadata.entries} == {
        "k": "1.10000000000000000000001",
        "l": "NaN",
    }


def test_large_metadata_do_not_travel_in_the_event() -> None:
    large = {"id": "a", "text": "x" * INLINE_BYTES}
    (event,) = prepare(exchange(request_body(metadata=large))).events
    assert event.inline_metadata is None


def test_inferences_of_a_batch_have_ids_of_their_own() -> None:
    body = request_body(png(1, 1), png(2, 2), png(3, 3), id="batch")
    captured = prepare(exchange(body, response_body(0.1, 0.2, 0.3, id="other")))
    events = captured.events
    assert [event.inference_id for event in events] == ["batch-0", "batch-1", "batch-2"]
    assert [event.aliases for event in events] == [("batch", "other")] * 3
    assert [event.extras.batch_index for event in events] == [0, 1, 2]
    assert [event.extras.width for event in events] == [1, 2, 3]
    assert len({event.uid for event in events}) == 3
    answers = [orjson.loads(blob) for blob in captured.list_blobs("response")]
    assert [answer["outputs"][0]["data"][0]["score"] for answer in answers] == [0.1, 0.2, 0.3]


FAILURES: list[tuple[dict[str, Any], bool, str | None]] = [
    ({"http_status": 200}, True, None),
    ({"http_status": 404}, False, None),
    ({"http_status": 500}, False, None),
    ({"http_status": None, "error": "timeout after 2 s"}, False, "timeout after 2 s"),
    ({"http_status": 200, "error": "the caller went away"}, False, "the caller went away"),
    ({"transport": "grpc", "http_status": None, "grpc_code": 0}, True, None),
    ({"transport": "grpc", "http_status": None, "grpc_code": 14}, False, None),
    ({"transport": "grpc", "http_status": None}, False, None),
]


def test_failures_are_captured() -> None:
    for changes, ok, error in FAILURES:
        (event,) = prepare(exchange(**changes)).events
        extras = event.extras
        assert (extras.ok, extras.error) == (ok, error), changes
        expected = (changes.get("http_status"), changes.get("grpc_code"))
        assert (extras.http_status, extras.grpc_code) == expected, changes


def test_the_text_of_an_error_is_kept_clean_and_short() -> None:
    answer = orjson.dumps({"error": "no\0 model " + "x" * 10_000})
    (event,) = prepare(exchange(None, answer, http_status=400)).events
    assert event.extras.error is not None
    assert event.extras.error.startswith("no\ufffd model")
    assert len(event.extras.error) == 4096


REST = [protocol for protocol in PROTOCOLS.values() if protocol.transport == "rest"]


@pytest.mark.parametrize("protocol", REST, ids=attrgetter("name"))
def test_a_body_over_the_cap_is_recorded_without_its_bytes(protocol: Protocol) -> None:
    half = Body(parts=(b'{"inputs": [',), size=10_000, whole=False)
    captured = capture(exchange(request=half), call=Call(protocol, "infer", "m"), model="detector")
    assert captured.events[0].data is None
    document = captured.find_metadata()
    assert document["request"]["messages"] is None
    assert document["capture"]["request_bytes"] == 10_000
    assert document["capture"]["request_whole"] is False


def test_a_model_is_its_own_name_and_an_odd_one_is_made_storable_in_keys_too() -> None:
    odd = {"m": "m", "": "unknown", "..": "unknown", "a\0b": "a\ufffdb", "\ud800": "?"}
    odd |= {model: model[:256] for model in ("...", "ü" * 256, "a/b c%2f" * 30)}
    for model, expected in odd.items():
        (event,) = prepare(exchange(), model=model).events
        assert event.model_id == expected
        assert event.data is not None
        assert max(len(part) for part in event.data.key.split("/")) <= 255


def test_the_id_for_the_answer_is_the_one_of_the_headers() -> None:
    for headers, expected in (
        ([("chariot-inference-base-id", "base"), ("x-request-id", "x")], "base"),
        ([("x-request-id", "x")], "x"),
        ([("chariot-inference-base-id", ""), ("x-request-id", "x")], "x"),
    ):
        assert id_for_answer(headers) == (ID_HEADER, expected)


def test_ids_by_precedence_and_the_others_as_aliases() -> None:
    both = [("chariot-inference-base-id", "base"), ("x-request-id", "x")]
    for request_id, response_id, headers, expected in (
        ("q", "r", both, ("q", ("base", "r", "x", "made"))),
        (None, "r", both, ("base", ("r", "x", "made"))),
        (None, "r", [], ("r", ("made",))),
        (None, None, [], ("made", ())),
        ("x" * 257, None, [], ("made", ())),
        ("a\0", None, [], ("made", ())),
        ("", None, [], ("made", ())),
        ("made", "made", [], ("made", ())),
    ):
        body = request_body(**({} if request_id is None else {"id": request_id}))
        answer = response_body(**({} if response_id is None else {"id": response_id}))
        made = [(ID_HEADER, "made")]
        sample = exchange(body, answer, request_headers=headers, response_headers=made)
        (event,) = prepare(sample).events
        assert (event.inference_id, event.aliases) == expected, (request_id, response_id)


def test_the_inferences_of_a_stream_have_their_own_ids() -> None:
    """One without an id has the number of its request behind the call's name."""
    for position, request_id, response_id, expected in (
        (0, "a", "s", ("a", ("s", "x"))),
        (0, None, None, ("x", ())),
        (1, "a", "s", ("a", ("s", "x"))),
        (2, None, "s", ("s", ("x",))),
        (3, None, None, ("x-3", ("x",))),
    ):
        headers = [("x-request-id", "x")]
        sample = exchange(request_headers=headers, response_headers=[], position=position)
        reading = Reading(inferences=[Inference()], request_id=request_id, response_id=response_id)
        (ids,) = ids_of(sample, reading)
        assert (ids.inference_id, ids.aliases) == expected


OVER = Body(size=10**9, whole=False)
BROKEN_OFF = Body(parts=(b'{"inp',), size=5, whole=False)
INCOMPLETE = {
    "the input is over a cap": (exchange(request=OVER), ["request_over_cap"]),
    "the answer is over a cap": (exchange(response=OVER), ["response_over_cap"]),
    "the request broke off": (exchange(request=BROKEN_OFF), ["request_broken_off"]),
    "the request cannot be read": (exchange(b"no json"), ["request_unreadable"]),
    "both": (exchange(b"no json", response=OVER), ["request_unreadable", "response_over_cap"]),
    "nothing": (exchange(request_body(png(), png())), []),
}


def test_every_event_of_it_is_flagged() -> None:
    for case, (sample, reasons) in INCOMPLETE.items():
        captured = capture(sample, call=CALL)
        assert captured.prepared.problems == tuple(reasons), case
        for event in captured.events:
            assert event.flags == tuple(f"capture_{reason}" for reason in reasons), case


MAGIC = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF0000WEBPVP", b"BM0000\0\0\0\0"]
MAGIC += [b"II*\0", b"MM\0*", b"0000ftypavif", b"0000ftypheic", b"P6\n"]
MAGIC += [b"\0\0\0\x0cjP  \r\n\x87\n"]


def test_content_types() -> None:
    for data, expected in (
        (png(), "image/png"),
        (b"GIF89a\x01\x00\x02\x00\x00\x00\x00;", "image/gif"),
        (b"a text, \xc3\xa9", "text/plain; charset=utf-8"),
        (b' {"a": [1]} ', "application/json"),
        (b"[1, 2]", "application/json"),
        (b"{not json}", "text/plain; charset=utf-8"),
        (b"\x00\x00\x80\x3f", "application/octet-stream"),
        (b"\xff\xfe\xfd", "application/octet-stream"),
        (b"", "text/plain; charset=utf-8"),
    ):
        assert content_type_of(data) == expected


def test_the_size_of_an_image() -> None:
    assert size_of(png(17, 5), "image/png") == (17, 5)
    assert size_of(b"GIF89a\x01\x00\x02\x00\x00\x00\x00;", "image/gif") == (1, 2)
    assert size_of(b"text", "text/plain") == (None, None)
    assert size_of(png()[:12], "image/png") == (None, None)
    # that of the stored pixels, however they are turned for people
    exif, file = Image.Exif(), BytesIO()
    exif[0x0112] = 6  # the orientation: a quarter turn
    Image.new("RGB", (40, 20)).save(file, "JPEG", exif=exif)
    assert size_of(file.getvalue(), "image/jpeg") == (40, 20)


@given(st.sampled_from(MAGIC), st.binary(max_size=200))
def test_nothing_is_raised_on_any_bytes(start: bytes, rest: bytes) -> None:
    kind = content_type_of(start + rest)
    width, height = size_of(start + rest, kind)
    assert (width is None) == (height is None)
    assert width is None or 0 < width < 2**31
