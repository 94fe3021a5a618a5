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
from inference_store.proxy.capture.kept_request import rebuilt
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.prepared import Prepared
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


def preparation(**changes: Any) -> Preparation:
    return Preparation(make_settings(ProxySettings, proxy_upstream="http://up", **changes))


def prepared(
    made: Exchange,
    rules: Rules | None = None,
    *,
    model: str = "detector",
    **changes: Any,
) -> Prepared:
    prepares = preparation(**changes)
    chosen = prepares.choose(Work(made, CALL, rules or Rules(), model))
    assert chosen is not None
    return prepares.prepare(chosen, "p", 1)


def events(of: Prepared) -> Sequence[InferenceEvent]:
    return [
        decode(each.value, record_time=datetime.now(UTC), buckets=BUCKETS) for each in of.messages
    ]


def blob(of: Prepared, kind: str, index: int = 0) -> bytes:
    found = [each.data for each in of.blobs if each.key.endswith(f"/{kind}")]
    return found[index]


def data(of: Prepared) -> dict[int, bytes]:
    found = [each.data for each in of.blobs if each.key.endswith("/data")]
    return dict(enumerate(found))


def document(of: Prepared, index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(blob(of, "metadata", index))
    return found


def test_an_event_says_all_that_is_known() -> None:
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
    one = prepared(exchange(body, request_headers=headers), rules)
    (event,) = events(one)
    said = event.extras
    assert (event.model_id, event.inference_id) == ("people", "frame-7")
    assert one.messages[0].key == b"people/frame-7"
    assert (said.project_id, said.model_name, said.model_version) == ("yard", "detector", "3")
    assert (said.task_type, said.protocol, said.ok) == ("object_detection", "images", True)
    assert (said.http_status, said.grpc_code, said.error) == (200, None, None)
    assert said.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert said.data_hash == hashlib.sha256(image).hexdigest()
    assert (said.data_size, said.data_content_type) == (len(image), "image/png")
    assert (said.width, said.height) == (4, 3)
    assert (said.batch_index, said.batch_size) == (0, 1)
    assert event.flags == ()
    assert event.data is not None
    assert belongs_to(event.data.key, "people", said.capture_id, event.received_at)
    assert {each.key for each in one.blobs} == {
        place.key for place in (event.data, event.response, event.metadata) if place is not None
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
    one = prepared(exchange(request_body(metadata=metadata), request_headers=headers), rules)
    (event,) = events(one)
    expected = {
        ("camera", "hall", "extended"),
        ("n", "7", "extended"),
        ("x-camera", "north", "standard"),
    }
    whole = blob(one, "metadata")
    for source in (whole, event.inline_metadata, without_request(whole)):
        found = read_metadata(source)
        assert found.problem is None
        assert found.flags == ()
        assert {(each.key, each.value, each.section) for each in found.entries} == expected


def test_an_envelope_keeps_its_numbers_and_what_is_no_strict_json() -> None:
    items = b'[{"key": "k", "type": "float", "value": 1.10000000000000000000001},'
    items += b' {"key": "l", "type": "float", "value": NaN}]'
    body = b'{"inputs": [{"data": ["AA=="], "parameters": {"metadata": %s}}]}' % items
    one = prepared(exchange(body))
    found = read_metadata(blob(one, "metadata"))
    assert {each.key: each.value for each in found.entries} == {
        "k": "1.10000000000000000000001",
        "l": "NaN",
    }


def test_the_event_in_the_blob_is_the_one_on_kafka_without_what_travels_in_it() -> None:
    one = prepared(exchange())
    sent = orjson.loads(one.messages[0].value)
    assert sent.pop("response") == blob(one, "response").decode()
    assert sent.pop("metadata")
    assert document(one)["event"] == sent


def test_what_is_large_does_not_travel_in_the_event() -> None:
    one = prepared(exchange(request_body(metadata=LIST)), proxy_inline_bytes=40)
    (event,) = events(one)
    assert event.inline_metadata is None
    assert event.inline_response is None


def test_the_request_can_be_sent_again_exactly() -> None:
    body = request_body(png(2, 2), png(3, 3), metadata=LIST, more={"text": "é\u2028"})
    one = prepared(exchange(body))
    kept, other = (document(one, index)["request"] for index in (0, 1))
    assert rebuilt(kept, data(one), {1: other["parts"]}) == [body]
    assert (kept["method"], kept["path"]) == ("POST", "/v2/models/detector/infer")
    assert b"iVBOR" not in orjson.dumps(kept)
    first = events(one)[0].metadata
    assert first is not None
    assert other["of"] == first.key


def test_a_gzipped_request_can_be_sent_again_unzipped() -> None:
    body = request_body(metadata=LIST)
    one = prepared(exchange(gzip.compress(body), request_headers=[("content-encoding", "gzip")]))
    assert rebuilt(document(one)["request"], data(one)) == [body]


def test_of_an_unreadable_request_the_body_is_the_datum() -> None:
    one = prepared(exchange(b"no json"))
    assert document(one)["capture"]["problem"]
    assert data(one) == {0: b"no json"}
    assert rebuilt(document(one)["request"], data(one)) == [b"no json"]


def test_the_inferences_of_a_batch_are_told_apart() -> None:
    body = request_body(png(1, 1), png(2, 2), png(3, 3), id="batch")
    one = prepared(exchange(body, response_body(0.1, 0.2, 0.3, id="other")))
    found = events(one)
    assert [each.inference_id for each in found] == ["batch-0", "batch-1", "batch-2"]
    assert [each.aliases for each in found] == [("batch", "other")] * 3
    assert [each.extras.batch_index for each in found] == [0, 1, 2]
    assert [each.extras.width for each in found] == [1, 2, 3]
    assert len({each.uid for each in found}) == 3
    assert [
        orjson.loads(blob(one, "response", i))["outputs"][0]["data"][0]["score"] for i in range(3)
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
    (event,) = events(prepared(exchange(**changes)))
    assert event.extras.ok is ok
    assert event.extras.error == error
    assert event.extras.http_status == changes.get("http_status")
    assert event.extras.grpc_code == changes.get("grpc_code")


def test_the_text_of_an_error_is_kept_clean_and_short() -> None:
    answer = orjson.dumps({"error": "no\0 model " + "x" * 10_000})
    (event,) = events(prepared(exchange(None, answer, http_status=400)))
    assert event.extras.error is not None
    assert event.extras.error.startswith("no\ufffd model")
    assert len(event.extras.error) == 4096


def test_a_body_over_the_cap_is_recorded_without_its_bytes() -> None:
    half = Body(parts=(b'{"inputs": [',), size=10_000, whole=False)
    made = exchange()
    made.request = half
    one = prepared(made)
    (event,) = events(one)
    assert event.data is None
    assert document(one)["request"]["messages"] is None
    assert document(one)["capture"]["request_bytes"] == 10_000
    assert document(one)["capture"]["request_whole"] is False


def test_a_model_is_its_own_name_and_an_odd_one_is_made_storable() -> None:
    for model, expected in (("m", "m"), ("", "unknown"), ("a\0b", "a\ufffdb"), ("\ud800", "?")):
        (event,) = events(prepared(exchange(), model=model))
        assert event.model_id == expected


@pytest.mark.parametrize("model", ["..", ".", "ü" * 256, "a/b c%2f" * 30])
def test_the_keys_of_an_odd_model_can_be_asked_for(model: str) -> None:
    (event,) = events(prepared(exchange(), model=model))
    assert event.model_id == model[:256]
    assert event.data is not None
    assert max(len(part) for part in event.data.key.split("/")) <= 255


SECRET = "4711-secret"


def everything(of: Prepared) -> bytes:
    return b"\n".join(
        [*(each.data for each in of.blobs), *(each.value for each in of.messages)]
        + [each.key for each in of.messages]
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
    one = prepared(exchange(body, answer), rules, proxy_redaction_key="k")
    assert SECRET.encode() not in everything(one)
    entries = {each.key: each.value for each in read_metadata(blob(one, "metadata")).entries}
    assert entries["camera"] == "hall"
    assert (entries.get("user") or "").startswith("hmac-sha256:") is (how == "hash")


def test_a_keyed_hash_is_the_same_for_the_same_value_and_key_alone() -> None:
    rules = Rules(redactions=(Redaction(what="metadata", name="user", how="hash"),))

    def hashed(key: str) -> str | None:
        one = prepared(exchange(request_body(metadata=NAMED)), rules, proxy_redaction_key=key)
        return next(
            e.value for e in read_metadata(blob(one, "metadata")).entries if e.key == "user"
        )

    assert hashed("a") == hashed("a") != hashed("b")
    # without a key there is no hash that could not be guessed: dropped
    one = prepared(exchange(request_body(metadata=NAMED)), rules)
    assert "user" not in {each.key for each in read_metadata(blob(one, "metadata")).entries}


def test_a_redacted_path_is_nowhere_and_the_rest_can_be_sent_again() -> None:
    rules = Rules(redactions=(Redaction(what="path", name="inputs[].parameters.user"),))
    body = orjson.loads(request_body(metadata=LIST))
    body["inputs"][0]["parameters"]["user"] = SECRET
    one = prepared(exchange(orjson.dumps(body)), rules)
    assert SECRET.encode() not in everything(one)
    del body["inputs"][0]["parameters"]["user"]
    (again,) = rebuilt(document(one)["request"], data(one))
    assert orjson.loads(again) == body


def test_a_redacted_id_is_not_taken_as_one() -> None:
    rules = Rules(redactions=(Redaction(what="path", name="id"),))
    one = prepared(exchange(request_body(id=SECRET)), rules)
    assert SECRET.encode() not in everything(one)


def test_a_redacted_header_is_nowhere() -> None:
    headers = [("x-user", SECRET), ("x-request-id", SECRET)]
    rules = Rules(
        redactions=tuple(
            Redaction(what="header", name=name) for name in ("X-User", "x-request-id")
        ),
        metadata_headers=("x-user", "x-request-id"),
    )
    one = prepared(exchange(request_headers=headers), rules)
    assert SECRET.encode() not in everything(one)


def test_metadata_in_a_header_are_redacted_there_too() -> None:
    headers = [("inference-store-metadata", orjson.dumps(NAMED).decode())]
    rules = Rules(redactions=(Redaction(what="metadata", name="user"),))
    one = prepared(exchange(request_headers=headers), rules)
    assert SECRET.encode() not in everything(one)
    (kept,) = [v for n, v in document(one)["request"]["headers"] if n == "inference-store-metadata"]
    assert [each["key"] for each in orjson.loads(kept)] == ["camera", "n"]


@pytest.mark.parametrize("how", ["drop", "hash"])
def test_a_dropped_input_leaves_nothing_but_a_keyed_hash(how: Any) -> None:
    text = SECRET.encode() * 10
    rules = Rules(redactions=(Redaction(what="input", how=how),))
    one = prepared(exchange(request_body(text, prompts=1)), rules, proxy_redaction_key="k")
    (event,) = events(one)
    assert SECRET.encode() not in everything(one)
    assert b"prompts" not in everything(one)
    assert event.data is None
    assert event.extras.data_size is None
    assert (event.extras.data_hash or "").startswith("hmac-sha256:") is (how == "hash")


@pytest.mark.parametrize("body", [b"user=" + SECRET.encode(), b'{"user": "' + SECRET.encode()])
def test_what_cannot_be_read_cannot_be_redacted_and_is_not_kept(body: bytes) -> None:
    rules = Rules(redactions=(Redaction(what="metadata", name="user"),))
    one = prepared(exchange(body), rules)
    assert SECRET.encode() not in everything(one)
    assert events(one)[0].data is None


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
    made = exchange(
        request_headers=[(name, SECRET) for name in names] + [("x-camera", "north")],
        query=f"api_key={SECRET}&token={SECRET}&a=1&sig={SECRET}",
    )
    one = prepared(made, Rules(metadata_headers=(*names, "x-camera")))
    assert SECRET.encode() not in everything(one)
    assert document(one)["request"]["query"] == "a=1"
    assert document(one)["standard_metadata"] == {"x-camera": "north"}


def test_headers_that_nobody_allowed_are_not_kept() -> None:
    one = prepared(exchange(request_headers=[("x-user", SECRET), ("accept", "*/*")]))
    assert SECRET.encode() not in everything(one)
    assert document(one)["request"]["headers"] == [["accept", "*/*"]]


def test_sampled_out_exchanges_are_none() -> None:
    chosen = preparation().choose(Work(exchange(), CALL, Rules(sampling=Sampling(share=0)), "m"))
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
    given = [("chariot-inference-base-id", "base"), ("x-request-id", "x")] if headers else []
    body = request_body(**({} if request_id is None else {"id": request_id}))
    answer = response_body(**({} if response_id is None else {"id": response_id}))
    made = exchange(body, answer, request_headers=given, response_headers=[(ID_HEADER, "made")])
    (event,) = events(prepared(made))
    assert (event.inference_id, event.aliases) == expected


def test_the_inferences_of_a_stream_have_their_own_ids() -> None:
    """An id that one of them has is no name of another; one that repeats is shared."""
    asked = [("a", "s1"), ("b", None), ("a", None), (None, "s4"), (None, None), ("a-2", "b")]
    found = ids_of(
        request_id=None,
        response_id=None,
        request_headers=[("x-request-id", "x")],
        response_headers=[],
        own=[*asked, ("b", None)],
    )
    assert [(each.inference_id, each.aliases) for each in found[:2]] == [
        ("s1", ("a", "x")),
        ("b-1", ("b", "x")),
    ]
    assert UUID(found[2].inference_id).version == 7  # `a-2` is somebody's own
    assert [(each.inference_id, each.aliases) for each in found[3:]] == [
        ("s4", ("x",)),
        ("x-4", ("x",)),
        ("a-2", ("b", "x")),
        ("b-6", ("b", "x")),
    ]


def test_without_any_id_one_is_made() -> None:
    (event,) = events(prepared(exchange()))
    assert UUID(event.inference_id).version == 7
    name, value = id_for_answer([])
    assert name == ID_HEADER
    assert UUID(value).version == 7
