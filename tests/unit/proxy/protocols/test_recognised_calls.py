"""Which calls each protocol recognises, by method and path."""

import gzip
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.events import CAPTURE_PROBLEMS
from inference_store.proxy.exchange import Body
from inference_store.proxy.protocols import PROTOCOLS, Call, Model, documents, recognise_call
from inference_store.proxy.protocols.protocol import Problem, join_problems, list_gaps
from tests.exchanges import exchange

from .exchanged import list_data, make_body, read_call

SERVICE = "/inference.GRPCInferenceService"
CALLS = [
    ("v2", "/v2/models/digits/infer", "infer", "digits", None),
    ("v2", "/v2/models/digits/infer/", "infer", "digits", None),
    ("v2", "/v2/models/digits/versions/3/infer", "infer", "digits", "3"),
    ("v2", "/v2/models/digits/versions/v1.2%2F3/infer/", "infer", "digits", "v1.2/3"),
    ("v2", "/v2/models/m-2vTeoZfP/infer/", "infer", "m-2vTeoZfP", None),
    ("v2", "/v2/models/team%2Fdigits%20one/infer", "infer", "team/digits one", None),
    ("v2", "/v2/models/a%ff%zz/infer", "infer", "a\ufffd%zz", None),
    ("v2", "/v2/models/versions/infer", "infer", "versions", None),
    ("v2", "/v2/models/llm/generate", "infer", "llm", None),
    ("v2", "/v2/models/llm/versions/1/generate", "infer", "llm", "1"),
    ("v2", "/v2/models/llm/generate_stream", "stream", "llm", None),
    ("v2", "/v2/models/llm/versions/1/infer_stream/", "stream", "llm", "1"),
    ("v2-grpc", f"{SERVICE}/ModelInfer", "infer", None, None),
    ("v2-grpc", f"{SERVICE}/ModelStreamInfer", "stream", None, None),
    ("kserve-v1", "/v1/models/flowers:predict", "infer", "flowers", None),
    ("kserve-v1", "/v1/models/a%2Fb:explain", "infer", "a/b", None),
    ("kserve-v1", "/v1/models/flowers%3Apredict", "infer", "flowers", None),
    ("kserve-v1", "/v1/models/a:b:predict", "infer", "a:b", None),
    ("kserve-v1", "/v1/models/flowers/versions/3:predict", "infer", "flowers", "3"),
    ("chariot-v2", "/infer", "infer", None, None),
    ("openai", "/v1/chat/completions", "infer", None, None),
    ("openai", "/openai/v1/chat/completions", "infer", None, None),
    ("openai", "/openai/v1/completions/", "infer", None, None),
    ("openai", "/openai/deployments/gpt%204/chat/completions", "infer", "gpt 4", None),
    ("openai-responses", "/v1/responses", "infer", None, None),
    ("openai-responses", "/openai/responses", "infer", None, None),
    ("openai-embeddings", "/v1/embeddings", "infer", None, None),
    ("openai-embeddings", "/openai/deployments/ada/embeddings", "infer", "ada", None),
    ("anthropic", "/v1/messages", "infer", None, None),
    ("mlflow", "/invocations", "infer", None, None),
    ("torchserve", "/predictions/resnet-18", "infer", "resnet-18", None),
    ("torchserve", "/explanations/resnet-18/2.0", "infer", "resnet-18", "2.0"),
    ("omi", "/ModzyModel/Run", "infer", None, None),
]
OTHERS = {
    "v2": [
        *("", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/repository/index"),
        *("/v2/models/digits", "/v2/models/digits/ready", "/v2/models/digits/versions/1"),
        *("/v2/models/digits/versions/1/ready", "/v2/models/digits/versions//infer"),
        *("/v2/models//infer", "/v2/models/team/digits/infer", "/v2/models/digits/infer//"),
        *("/v2/models/digits/infers", "/v2/models/digits/infer\n", "/V2/models/digits/infer"),
        *("/v2/repository/models/digits/load", "/v2/repository/models/infer/unload"),
        "/prefix/v2/models/digits/infer",
    ],
    "v2-grpc": [f"{SERVICE}/ModelReady", "/ModelInfer", ""],
    "kserve-v1": ["/v1/models/flowers", "/v1/models/flowers:classify", "/v1/models"],
    "chariot-v2": ["/ready", "/v2/models/m/infer"],
    "openai": ["/v1/embeddings", "/v1/models", "/openai/deployments/a/b/completions"],
    "openai-responses": ["/v1/responses/resp_1/cancel", "/responses"],
    "openai-embeddings": ["/v1/completions"],
    "anthropic": ["/v1/messages/count_tokens", "/v1/messages/batches"],
    "mlflow": ["/ping", "/invocations/x"],
    "torchserve": ["/predictions", "/models/resnet-18", "/predictions/a/b/c"],
    "omi": ["/ModzyModel/Status", "/ModzyModel/Shutdown", "/x.ModzyModel/Run"],
}


def test_a_call() -> None:
    assert {name for name, *_ in CALLS} == OTHERS.keys() == PROTOCOLS.keys() - {"raw", "raw-grpc"}
    for name, path, kind, model, version in CALLS:
        protocol = PROTOCOLS[name]
        method = "POST" if protocol.transport == "rest" else path
        call = recognise_call([name], protocol.transport, method, path)
        assert call is not None, path
        found = (call.protocol, call.kind, call.model, call.version)
        assert found == (protocol, kind, model, version), path


def test_no_call() -> None:
    for name, paths in OTHERS.items():
        transport = PROTOCOLS[name].transport
        for path in paths:
            method = "POST" if transport == "rest" else path
            assert recognise_call([name], transport, method, path) is None, path
    for name, path, *_ in CALLS:
        if PROTOCOLS[name].transport == "rest":
            for method in ("GET", "OPTIONS", "HEAD", "post"):
                assert recognise_call([name], "rest", method, path) is None, (method, path)


def test_raw_recognises_every_call_after_the_other_protocols() -> None:
    assert recognise_call(["raw"], "rest", "GET", "/anything") is not None
    assert recognise_call([], "rest", "GET", "/anything") is None
    assert recognise_call(["raw"], "grpc", "/a.B/C", "/a.B/C") is None
    for path, name in (("/v1/completions", "openai"), ("/v1/embeddings", "raw")):
        call = recognise_call(["raw", "openai"], "rest", "POST", path)
        assert call is not None
        assert call.protocol.name == name


# Each problem of a capture has a reason, whatever the protocol.

REST = ("v2", "chariot-v2", "kserve-v1", "openai")
GRPC = ("v2-grpc", "omi")
OVER, BROKEN_OFF = Body(size=100, whole=False), make_body(b'{"inputs": [', whole=False)
BROTLI = [("content-encoding", "br"), ("content-type", "application/json")]


def find_reasons(name: str, body: Body, answer: Body | None = None, **changes: Any) -> set[str]:
    """Find the reasons of a call whose request and answer are like this body."""
    protocol = PROTOCOLS[name]
    bodies = {"request": body, "response": answer or body}
    sample = exchange(b"", b"", transport=protocol.transport, **bodies, **changes)
    reading = protocol.read(sample, Call(protocol, "infer"), Model()).problem
    reasons = set() if reading is None else {f"{side}_{kind}" for side, kind in reading.reasons}
    assert bool(reading) == bool(reasons)
    assert reasons <= set(CAPTURE_PROBLEMS)
    return reasons


def make_reasons(kind: str) -> set[str]:
    return {f"request_{kind}", f"response_{kind}"}


def test_every_protocol_has_the_same_reasons() -> None:
    for name in REST:
        assert find_reasons(name, make_body(b'{"inputs": ')) >= make_reasons("not_json"), name
        coded = find_reasons(
            name, make_body(b"\x8b"), request_headers=BROTLI, response_headers=BROTLI
        )
        assert coded == make_reasons("unreadable"), name
    for name in GRPC:
        assert find_reasons(name, make_body(b"\xff")) == make_reasons("unreadable"), name
    for name in (*REST, *GRPC):
        assert find_reasons(name, OVER) >= make_reasons("over_cap"), name
        assert find_reasons(name, BROKEN_OFF) >= make_reasons("broken_off"), name


UNREADABLE = {
    "/v1/chat/completions": (b"{", b"[]", b"", b'{"model": "m"}', b'{"messages": 3}'),
    "/v1/models/m:predict": (b"", b"{", b'{"inputs": [1]}', b"[1]"),
    "/infer": (b"", b"{", b"{}", b"[1]", b'{"input": null}'),
}


def test_a_request_that_cannot_be_read_is_kept_whole() -> None:
    for path, requests in UNREADABLE.items():
        for request in requests:
            reading = read_call(path, request, {"predictions": [1, 2]})
            assert list_data(reading) == [request], path
            assert reading.problem, path


def test_what_a_body_lacks() -> None:
    """A call without any answer lacks none; what cannot be redacted is unreadable."""
    assert find_reasons("v2", make_body(b'{"inputs": []}'), Body()) == {"request_no_input"}
    none = Body(whole=False)
    assert list_gaps(none, "response") == []
    assert list_gaps(none, "request") == [("request", "broken_off")]
    assert make_body(b"x").dropped().gap == "unreadable"
    assert make_body(b"x", whole=False).dropped().gap == "broken_off"
    assert make_body(b"").dropped().gap is None


def test_problems_are_joined_with_all_their_reasons() -> None:
    cut = Problem("cut", ("request", "over_cap"))
    many = [cut, None, cut, *(Problem(f"{n}", ("response", "not_json")) for n in range(20))]
    result = join_problems(many)
    assert result is not None
    assert result.startswith("cut; 0; 1")
    assert result.count(";") == 7
    assert set(result.reasons) == {("request", "over_cap"), ("response", "not_json")}
    assert join_problems([None]) is None


# Content codings, undone under a bound and done again; and server-sent events.

GZIP = [("content-encoding", "gzip")]


@given(
    content=st.binary(),
    names=st.lists(st.sampled_from(["gzip", "deflate", "identity", "X-Gzip"]), max_size=4),
)
def test_decodes_what_was_encoded(content: bytes, names: list[str]) -> None:
    headers = [("content-encoding", " , ".join(names)), ("content-encoding", "")]
    assert documents.decode(documents.encode(content, headers), headers) == content
    assert len(documents.list_codings(headers)) == len(names) - names.count("identity")


def test_the_bound_is_kept() -> None:
    bomb = gzip.compress(b"\0" * 5000)
    assert len(documents.decode(bomb, GZIP, 5000)) == 5000
    with pytest.raises(documents.NotDecoded, match="larger than 4999 bytes"):
        documents.decode(bomb, GZIP, 4999)
    with pytest.raises(documents.NotDecoded, match="larger than 7000 bytes"):
        documents.decode(bomb * 2, GZIP, 7000)


def test_several_members_are_one_body() -> None:
    assert documents.decode(gzip.compress(b"a") + gzip.compress(b"b") + b"\0\0", GZIP) == b"ab"


@given(content=st.binary(), name=st.sampled_from(["gzip", "deflate", "br", "a,b,c,d,e"]))
def test_any_bytes_are_decoded_or_refused(content: bytes, name: str) -> None:
    try:
        documents.decode(content, [("content-encoding", name)], 1000)
    except documents.NotDecoded as exc:
        assert str(exc)


def test_the_data_of_each() -> None:
    for body, expected in (
        (b"", []),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata:a\r\n\r\ndata:  b\r\rdata: c", [b"a", b" b", b"c"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": ping\n\nevent: done\nid: 1\n\nretry: 3\n", []),
        (b"event: x\ndata\n\ndata:\n\ndata: a\n\n", [b"a"]),
    ):
        assert documents.events(body) == expected


def test_recognises_an_event_stream() -> None:
    assert documents.is_event_stream([("content-type", "Text/Event-Stream; charset=utf-8")], b"")
    assert documents.is_event_stream([], b"data: {}")
    assert not documents.is_event_stream([("content-type", "application/json")], b"{}")
