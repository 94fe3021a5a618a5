"""A stored request is rebuilt for another model, and asks for nothing but an inference."""

import json
from typing import Any
from uuid import uuid4

import pytest

from inference_store.inference.stored_requests import (
    NotSendable,
    ReplayMark,
    Request,
    Target,
    Unsendable,
    rebuild,
)

SAME, OTHER, VERSION = Target(None, None), Target("a b", None), Target(None, "7")
PREDICT = "/v1/models/m:predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"
CHAT = '{"model": "m", "n": 1.50}'


def write_blob(path: str, *parts: Any, **changes: Any) -> bytes:
    request = {
        "method": "POST",
        "path": path,
        "query": "",
        "headers": [["content-type", "application/json"]],
        "messages": [list(parts)],
        **changes,
    }
    return json.dumps({"metadata": [], "request": request}).encode()


@pytest.mark.parametrize(
    ("path", "target", "sent"),
    [
        ("/v2/models/m/versions/1/infer", SAME, "/v2/models/m/versions/1/infer"),
        ("/v2/models/m/versions/1/infer", OTHER, "/v2/models/a%20b/infer"),
        ("/v2/models/m%2Fn/infer", VERSION, "/v2/models/m%2Fn/versions/7/infer"),
        ("/team/v2/models/m/generate", OTHER, "/team/v2/models/a%20b/generate"),
        (PREDICT, OTHER, "/v1/models/a%20b:predict"),
    ],
)
def test_the_path_names_the_model_that_is_to_answer(path: str, target: Target, sent: str) -> None:
    parts = ('{"x": "', {"data": "base64"}, '"', {"base64": "fQ=="})
    assert rebuild(write_blob(path, *parts), b"\xff\x00", target) == Request(
        sent, "", [("content-type", "application/json")], b'{"x": "/wA="}'
    )


def test_a_body_that_names_the_model_is_changed_in_nothing_else() -> None:
    sent = rebuild(write_blob("/v1/chat/completions", CHAT), None, OTHER)
    assert sent.body == b'{"model":"a b","n":1.50}'
    assert rebuild(write_blob("/v1/chat/completions", CHAT), None, SAME).body == CHAT.encode()


@pytest.mark.parametrize(
    ("blob", "datum", "target", "reason"),
    [
        (b"{}", b"x", SAME, "not_kept"),
        (write_blob(PREDICT, messages=None, why="a redaction removes it"), b"x", SAME, "not_kept"),
        (write_blob(PREDICT, {"data": "bytes"}), None, SAME, "input_gone"),
        (write_blob(PREDICT, {"data": "no such form"}), b"x", SAME, "unreadable"),
        (b'{"request": [1]}', b"x", SAME, "unreadable"),
        (b"no JSON", b"x", SAME, "not_kept"),
        (write_blob(PREDICT, "{}"), b"x", VERSION, "version"),
        (write_blob("/v1/chat/completions", CHAT), b"x", VERSION, "version"),
        (write_blob("/invocations", "{}"), b"x", OTHER, "protocol"),
        # an answer of a stream that came too late has no request
        (write_blob(INFER, method=INFER, messages=[]), b"x", SAME, "not_kept"),
        (write_blob("/ModzyModel/Run", "x", method="/ModzyModel/Run"), b"x", SAME, "protocol"),
        (write_blob(PREDICT, "{}", method=INFER), b"x", SAME, "protocol"),
        # a stranger's blob asks for something else than an inference
        (write_blob("/v2/repository/models/m/unload", "{}"), b"x", SAME, "protocol"),
        (write_blob("@169.254.169.254/v2/models/m/infer", "{}"), b"x", SAME, "protocol"),
        (write_blob("//host/../v2/models/m/infer", "{}"), b"x", SAME, "unreadable"),
        (write_blob("/%2e%2e/v2/models/m/infer", "{}"), b"x", SAME, "unreadable"),
        (write_blob("/v2/models/m/infer#/infer", "{}"), b"x", SAME, "protocol"),
        (write_blob(PREDICT, "{}", query="a b"), b"x", SAME, "unreadable"),
        (write_blob(PREDICT, "{}", method="DELETE"), b"x", SAME, "protocol"),
    ],
)
def test_what_cannot_be_sent_says_why(
    blob: bytes, datum: bytes | None, target: Target, reason: Unsendable
) -> None:
    with pytest.raises(NotSendable) as refused:
        rebuild(blob, datum, target)
    assert refused.value.reason == reason


def test_a_message_of_grpc_comes_as_it_was() -> None:
    for path in (INFER, INFER.replace("ModelInfer", "ModelStreamInfer")):
        parts = ({"base64": "CgFt"}, {"data": "bytes"})
        sent = rebuild(write_blob(path, *parts, method=path, headers=[]), b"x", OTHER)
        assert sent == Request(path, "", [], b"\n\x01mx")
        assert sent.is_grpc


def test_headers_that_are_for_the_proxy_stay_out() -> None:
    own = ["host", "authorization", "content-length", "x-forwarded-for", "inference-store-replay"]
    headers = [[name, "x"] for name in (*own, "bad name")] + [["accept", "a\r\nb: c"], ["x-a", "1"]]
    sent = rebuild(write_blob(PREDICT, "{}", headers=headers), None, SAME)
    assert sent.headers == [("x-a", "1")]


def test_a_replay_is_known_by_its_id() -> None:
    mark = ReplayMark(uuid4(), uuid4())
    assert ReplayMark.of_id(mark.inference_id) == ReplayMark.read(mark.header) == mark
    for text in ("", "replay-", f"replay-{mark.job}", f"{mark.inference_id}x", "frame-7"):
        assert ReplayMark.of_id(text) is None
    assert ReplayMark.read("x/y") is None
