"""From an exchange to blobs and events: read back by what the ingester reads them with."""

import gzip
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest

from inference_store.index.sidecars import without_request
from inference_store.inference.events import Buckets, InferenceEvent, decode
from inference_store.inference.layout import belongs_to
from inference_store.inference.metadata import read_metadata
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.ids import ID_HEADER, id_for_answer, ids_of
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.prepared_capture import PreparedCapture
from inference_store.proxy.capture.request_remainder import rebuild_messages
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.rules import Redaction, Rules, Sampling
from tests.exchanges import CALL, exchange, png, request_body, response_body
from tests.settings import make_settings

BUCKETS = Buckets(default="b", allowed=frozenset())
LIST = [
    {"key": "camera", "type": "string", "value": "hall"},
    {"key": "n", "type": "int", "value": "7"},
]


def make_preparation(**changes: Any) -> Preparation:
    return Preparation(make_settings(ProxySettings, proxy_upstream="http://up", **changes))


def prepare(
    sample: Exchange,
    rules: Rules | None = None,
    *,
    model: str = "detector",
    **changes: Any,
) -> PreparedCapture:
    prepares = make_preparation(**changes)
    chosen = prepares.choose(Work(sample, CALL, rules or Rules(), model))
    assert chosen is not None
    return prepares.prepare(chosen, "p", 1)


def decode_events(of: PreparedCapture) -> Sequence[InferenceEvent]:
    return [
        decode(message.value, record_time=datetime.now(UTC), buckets=BUCKETS)
        for message in of.messages
    ]


def find_blob(of: PreparedCapture, kind: str, index: int = 0) -> bytes:
    listed = [blob.data for blob in of.blobs if blob.key.endswith(f"/{kind}")]
    return listed[index]


def list_data(of: PreparedCapture) -> dict[int, bytes]:
    listed = [blob.data for blob in of.blobs if blob.key.endswith("/data")]
    return dict(enumerate(listed))


def read_document(of: PreparedCapture, index: int = 0) -> dict[str, Any]:
    result: dict[str, Any] = orjson.loads(find_blob(of, "metadata", index))
    return result


def test_an_event_has_all_known_fields() -> None:
    image = png(4, 3)
    body = request_body(image, metadata=LIST, id="frame-7")
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = [("content-type", "application/json"), ("traceparent", trace), ("x-camera", "north")]
    rules = Rules(
        model_id="people",
        project_id="yard",
        task_type="Object Detection",
        metadata_headers=("x-camera",),
    )
    capture = prepare(exchange(body, request_headers=headers), rules)
    (event,) = decode_events(capture)
    extras = event.extras
    assert (event.model_id, event.inference_id) == ("people", "frame-7")
    assert capture.messages[0].key == b"people/frame-7"
    assert (extras.project_id, extras.model_name, extras.model_version) == ("yard", "detector", "3")
    assert (extras.task_type, extras.protocol, extras.ok) == ("object_detection", "images", True)
    assert (extras.http_status, extras.grpc_code, extras.error) == (200, None, None)
    assert extras.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert extras.data_hash == hashlib.sha256(image).hexdigest()
    assert (extras.data_size, extras.data_content_type) == (len(image), "image/png")
    assert (extras.width, extras.height) == (4, 3)
    assert (extras.batch_index, extras.batch_size) == (0, 1)
    assert event.flags == ()
    assert event.data is not None
    assert belongs_to(event.data.key, "people", extras.capture_id, event.received_at)
    assert {blob.key for blob in capture.blobs} == {
        storage_key.key
        for storage_key in (event.data, event.response, event.metadata)
        if storage_key is not None
    }


@pytest.mark.parametrize(
    "metadata",
    [
        LIST,
        orjson.dumps(LIST).decode(),
        {"standard_metadata": {}, "extended_metadata": LIST},
        orjson.dumps({"standard_metadata": {}, "extended_metadata": LIST}).decode(),
    ],
)
def test_metadata_are_read_back_from_the_blob_and_from_the_event(metadata: Any) -> None:
    headers = [("x-camera", "north")]
    rules = Rules(metadata_headers=("x-camera",))
    capture = prepare(exchange(request_body(metadata=metadata), request_headers=headers), rules)
    (event,) = decode_events(capture)
    expected = {
        ("camera", "hall", "extended"),
        ("n", "7", "extended"),
        ("x-camera", "north", "standard"),
    }
    whole = find_blob(capture, "metadata")
    for source in (whole, event.inline_metadata, without_request(whole)):
        result = read_metadata(source)
        assert result.problem is None
        assert result.flags == ()
        assert {(entry.key, entry.value, entry.section) for entry in result.entries} == expected


def test_an_envelope_keeps_exact_numbers_and_lenient_json() -> None:
    items = b'[{"key": "k", "type": "float", "value": 1.10000000000000000000001},'
    items += b' {"key": "l", "type": "float", "value": NaN}]'
    body = b'{"inputs": [{"data": ["AA=="], "parameters": {"metadata": %s}}]}' % items
    capture = prepare(exchange(body))
    metadata = read_metadata(find_blob(capture, "metadata"))
    assert {entry.key: entry.value for entry in metadata.entries} == {
        "k": "1.10000000000000000000001",
        "l": "NaN",
    }


def test_the_event_in_the_blob_is_the_one_on_kafka_without_what_travels_in_it() -> None:
    capture = prepare(exchange())
    sent = orjson.loads(capture.messages[0].value)
    assert sent.pop("response") == find_blob(capture, "response").decode()
    assert sent.pop("metadata")
    assert read_document(capture)["event"] == sent


def test_large_values_are_not_in_the_event() -> None:
    capture = prepare(exchange(request_body(metadata=LIST)), proxy_inline_bytes=40)
    (event,) = decode_events(capture)
    assert event.inline_metadata is None
    assert event.inline_response is None


def test_the_request_can_be_sent_again_exactly() -> None:
    body = request_body(png(2, 2), png(3, 3), metadata=LIST, more={"text": "é\u2028"})
    capture = prepare(exchange(body))
    request, other = (read_document(capture, index)["request"] for index in (0, 1))
    assert rebuild_messages(request, list_data(capture), {1: other["parts"]}) == [body]
    assert (request["method"], request["path"]) == ("POST", "/v2/models/detector/infer")
    assert b"iVBOR" not in orjson.dumps(request)
    first = decode_events(capture)[0].metadata
    assert first is not None
    assert other["of"] == first.key


def test_a_gzipped_request_can_be_sent_again_unzipped() -> None:
    body = request_body(metadata=LIST)
    capture = prepare(exchange(gzip.compress(body), request_headers=[("content-encoding", "gzip")]))
    assert rebuild_messages(read_document(capture)["request"], list_data(capture)) == [body]


def test_the_body_of_an_unreadable_request_is_the_datum() -> None:
    capture = prepare(exchange(b"no json"))
    assert read_document(capture)["capture"]["problem"]
    assert list_data(capture) == {0: b"no json"}
    assert rebuild_messages(read_document(capture)["request"], list_data(capture)) == [b"no json"]


def test_inferences_of_a_batch_have_ids_of_their_own() -> None:
    body = request_body(png(1, 1), png(2, 2), png(3, 3), id="batch")
    capture = prepare(exchange(body, response_body(0.1, 0.2, 0.3, id="other")))
    events_found = decode_events(capture)
    assert [event.inference_id for event in events_found] == ["batch-0", "batch-1", "batch-2"]
    assert [event.aliases for event in events_found] == [("batch", "other")] * 3
    assert [event.extras.batch_index for event in events_found] == [0, 1, 2]
    assert [event.extras.width for event in events_found] == [1, 2, 3]
    assert len({event.uid for event in events_found}) == 3
    assert [
        orjson.loads(find_blob(capture, "response", i))["outputs"][0]["data"][0]["score"]
        for i in range(3)
    ] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("changes", "ok", "error"),
    [
        ({"http_status": 200}, True, None),
        ({"http_status": 404}, False, None),
        ({"http_status": 500}, False, None),
        ({"http_status": None, "error": "timeout after 2 s"}, False, "timeout after 2 s"),
        ({"http_status": 200, "error": "the caller went away"}, False, "the caller went away"),
        ({"transport": "grpc", "http_status": None, "grpc_code": 0}, True, None),
        ({"transport": "grpc", "http_status": None, "grpc_code": 14}, False, None),
        ({"transport": "grpc", "http_status": None}, False, None),
    ],
)
def test_failures_are_captured(changes: dict[str, Any], ok: bool, error: str | None) -> None:
    (event,) = decode_events(prepare(exchange(**changes)))
    assert event.extras.ok is ok
    assert event.extras.error == error
    assert event.extras.http_status == changes.get("http_status")
    assert event.extras.grpc_code == changes.get("grpc_code")


def test_the_text_of_an_error_is_kept_clean_and_short() -> None:
    answer = orjson.dumps({"error": "no\0 model " + "x" * 10_000})
    (event,) = decode_events(prepare(exchange(None, answer, http_status=400)))
    assert event.extras.error is not None
    assert event.extras.error.startswith("no\ufffd model")
    assert len(event.extras.error) == 4096


def test_a_body_over_the_cap_is_recorded_without_its_bytes() -> None:
    half = Body(parts=(b'{"inputs": [',), size=10_000, whole=False)
    sample = exchange()
    sample.request = half
    capture = prepare(sample)
    (event,) = decode_events(capture)
    assert event.data is None
    assert read_document(capture)["request"]["messages"] is None
    assert read_document(capture)["capture"]["request_bytes"] == 10_000
    assert read_document(capture)["capture"]["request_whole"] is False


def test_a_model_is_its_own_name_and_an_odd_one_is_made_storable() -> None:
    for model, expected in (("m", "m"), ("", "unknown"), ("a\0b", "a\ufffdb"), ("\ud800", "?")):
        (event,) = decode_events(prepare(exchange(), model=model))
        assert event.model_id == expected


@pytest.mark.parametrize("model", ["..", ".", "ü" * 256, "a/b c%2f" * 30])
def test_the_keys_of_an_oddly_named_model_can_be_read(model: str) -> None:
    (event,) = decode_events(prepare(exchange(), model=model))
    assert event.model_id == model[:256]
    assert event.data is not None
    assert max(len(part) for part in event.data.key.split("/")) <= 255


SECRET = "4711-secret"


def join_all_bytes(of: PreparedCapture) -> bytes:
    return b"\n".join(
        [*(blob.data for blob in of.blobs), *(item.value for item in of.messages)]
        + [message.key for message in of.messages]
    )


NAMED = [{"key": "user", "type": "string", "value": SECRET}, *LIST]


@pytest.mark.parametrize("how", ["drop", "hash"])
@pytest.mark.parametrize(
    "metadata",
    [
        NAMED,
        orjson.dumps(NAMED).decode(),
        {"standard_metadata": {"user": SECRET}, "extended_metadata": NAMED},
        orjson.dumps({"standard_metadata": {}, "extended_metadata": NAMED}).decode(),
        orjson.dumps(orjson.dumps(NAMED).decode()).decode(),
    ],
)
def test_a_redacted_metadata_key_is_nowhere(metadata: Any, how: Any) -> None:
    answer = orjson.dumps(
        {"outputs": [{"name": "o", "data": [], "parameters": {"metadata": metadata}}]}
    )
    rules = Rules(redactions=(Redaction(what="metadata", name="user", how=how),))
    body = request_body(metadata=metadata, id="1")
    capture = prepare(exchange(body, answer), rules, proxy_redaction_key="k")
    assert SECRET.encode() not in join_all_bytes(capture)
    entries = {
        entry.key: entry.value for entry in read_metadata(find_blob(capture, "metadata")).entries
    }
    assert entries["camera"] == "hall"
    assert (entries.get("user") or "").startswith("hmac-sha256:") is (how == "hash")


def test_a_keyed_hash_is_the_same_for_the_same_value_and_key_alone() -> None:
    rules = Rules(redactions=(Redaction(what="metadata", name="user", how="hash"),))

    def hashed(key: str) -> str | None:
        capture = prepare(exchange(request_body(metadata=NAMED)), rules, proxy_redaction_key=key)
        return next(
            e.value
            for e in read_metadata(find_blob(capture, "metadata")).entries
            if e.key == "user"
        )

    assert hashed("a") == hashed("a") != hashed("b")
    # without a key there is no hash that could not be guessed: dropped
    capture_without_key = prepare(exchange(request_body(metadata=NAMED)), rules)
    assert "user" not in {
        entry.key for entry in read_metadata(find_blob(capture_without_key, "metadata")).entries
    }


def test_a_redacted_path_is_nowhere_and_the_rest_can_be_sent_again() -> None:
    rules = Rules(redactions=(Redaction(what="path", name="inputs[].parameters.user"),))
    body = orjson.loads(request_body(metadata=LIST))
    body["inputs"][0]["parameters"]["user"] = SECRET
    capture = prepare(exchange(orjson.dumps(body)), rules)
    assert SECRET.encode() not in join_all_bytes(capture)
    del body["inputs"][0]["parameters"]["user"]
    (again,) = rebuild_messages(read_document(capture)["request"], list_data(capture))
    assert orjson.loads(again) == body


def test_a_redacted_id_is_not_used_as_an_id() -> None:
    rules = Rules(redactions=(Redaction(what="path", name="id"),))
    capture = prepare(exchange(request_body(id=SECRET)), rules)
    assert SECRET.encode() not in join_all_bytes(capture)


def test_a_redacted_header_is_nowhere() -> None:
    headers = [("x-user", SECRET), ("x-request-id", SECRET)]
    rules = Rules(
        redactions=tuple(
            Redaction(what="header", name=name) for name in ("X-User", "x-request-id")
        ),
        metadata_headers=("x-user", "x-request-id"),
    )
    capture = prepare(exchange(request_headers=headers), rules)
    assert SECRET.encode() not in join_all_bytes(capture)


def test_metadata_in_a_header_are_redacted_there_too() -> None:
    headers = [("inference-store-metadata", orjson.dumps(NAMED).decode())]
    rules = Rules(redactions=(Redaction(what="metadata", name="user"),))
    capture = prepare(exchange(request_headers=headers), rules)
    assert SECRET.encode() not in join_all_bytes(capture)
    (envelope,) = [
        v
        for n, v in read_document(capture)["request"]["headers"]
        if n == "inference-store-metadata"
    ]
    assert [entry["key"] for entry in orjson.loads(envelope)] == ["camera", "n"]


@pytest.mark.parametrize("how", ["drop", "hash"])
def test_a_dropped_input_leaves_nothing_but_a_keyed_hash(how: Any) -> None:
    text = SECRET.encode() * 10
    rules = Rules(redactions=(Redaction(what="input", how=how),))
    capture = prepare(exchange(request_body(text, prompts=1)), rules, proxy_redaction_key="k")
    (event,) = decode_events(capture)
    assert SECRET.encode() not in join_all_bytes(capture)
    assert b"prompts" not in join_all_bytes(capture)
    assert event.data is None
    assert event.extras.data_size is None
    assert (event.extras.data_hash or "").startswith("hmac-sha256:") is (how == "hash")


@pytest.mark.parametrize("body", [b"user=" + SECRET.encode(), b'{"user": "' + SECRET.encode()])
def test_does_not_keep_unreadable_bodies_with_redaction(body: bytes) -> None:
    rules = Rules(redactions=(Redaction(what="metadata", name="user"),))
    capture = prepare(exchange(body), rules)
    assert SECRET.encode() not in join_all_bytes(capture)
    assert decode_events(capture)[0].data is None


def test_secrets_of_the_transport_are_never_kept_whatever_is_allowed() -> None:
    names = [
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "api-key",
        "x-auth-token",
    ]
    names += ["x-amz-security-token", "ocp-apim-subscription-key", "x-forwarded-client-cert"]
    sample = exchange(
        request_headers=[(name, SECRET) for name in names] + [("x-camera", "north")],
        query=f"api_key={SECRET}&token={SECRET}&a=1&sig={SECRET}",
    )
    capture = prepare(sample, Rules(metadata_headers=(*names, "x-camera")))
    assert SECRET.encode() not in join_all_bytes(capture)
    assert read_document(capture)["request"]["query"] == "a=1"
    assert read_document(capture)["standard_metadata"] == {"x-camera": "north"}


def test_does_not_keep_headers_that_are_not_allowed() -> None:
    capture = prepare(exchange(request_headers=[("x-user", SECRET), ("accept", "*/*")]))
    assert SECRET.encode() not in join_all_bytes(capture)
    assert read_document(capture)["request"]["headers"] == [["accept", "*/*"]]


def test_sampled_out_exchanges_are_none() -> None:
    chosen = make_preparation().choose(
        Work(exchange(), CALL, Rules(sampling=Sampling(share=0)), "m")
    )
    assert chosen is None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("chariot-inference-base-id", "base"), ("x-request-id", "x")], "base"),
        ([("x-request-id", "x")], "x"),
        ([("chariot-inference-base-id", ""), ("x-request-id", "x")], "x"),
    ],
)
def test_the_id_for_the_answer_is_the_one_of_the_headers(headers: Any, expected: str) -> None:
    assert id_for_answer(headers) == (ID_HEADER, expected)


@pytest.mark.parametrize(
    ("request_id", "response_id", "headers", "expected"),
    [
        ("q", "r", True, ("q", ("base", "r", "x", "made"))),
        (None, "r", True, ("base", ("r", "x", "made"))),
        (None, "r", False, ("r", ("made",))),
        (None, None, False, ("made", ())),
        ("x" * 257, None, False, ("made", ())),
        ("a\0", None, False, ("made", ())),
        ("", None, False, ("made", ())),
        ("made", "made", False, ("made", ())),
    ],
)
def test_ids_by_precedence_and_the_others_as_aliases(
    request_id: str | None, response_id: str | None, headers: bool, expected: Any
) -> None:
    request_headers = (
        [("chariot-inference-base-id", "base"), ("x-request-id", "x")] if headers else []
    )
    body = request_body(**({} if request_id is None else {"id": request_id}))
    answer = response_body(**({} if response_id is None else {"id": response_id}))
    sample = exchange(
        body, answer, request_headers=request_headers, response_headers=[(ID_HEADER, "made")]
    )
    (event,) = decode_events(prepare(sample))
    assert (event.inference_id, event.aliases) == expected


def test_the_inferences_of_a_stream_have_their_own_ids() -> None:
    """An id that one of them has is no name of another; one that repeats is shared."""
    pairs = [("a", "s1"), ("b", None), ("a", None), (None, "s4"), (None, None), ("a-2", "b")]
    result = ids_of(
        request_id=None,
        response_id=None,
        request_headers=[("x-request-id", "x")],
        response_headers=[],
        own=[*pairs, ("b", None)],
    )
    assert [(ids.inference_id, ids.aliases) for ids in result[:2]] == [
        ("s1", ("a", "x")),
        ("b-1", ("b", "x")),
    ]
    assert UUID(result[2].inference_id).version == 7  # `a-2` is the id of another
    assert [(ids.inference_id, ids.aliases) for ids in result[3:]] == [
        ("s4", ("x",)),
        ("x-4", ("x",)),
        ("a-2", ("b", "x")),
        ("b-6", ("b", "x")),
    ]


def test_without_any_id_one_is_made() -> None:
    (event,) = decode_events(prepare(exchange()))
    assert UUID(event.inference_id).version == 7
    name, value = id_for_answer([])
    assert name == ID_HEADER
    assert UUID(value).version == 7
