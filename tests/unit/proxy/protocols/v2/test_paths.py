"""Which paths are calls of V2."""

import pytest

from inference_store.proxy.protocols.v2 import V2_REST


@pytest.mark.parametrize(
    ("path", "kind", "model", "version"),
    [
        ("/v2/models/digits/infer", "infer", "digits", None),
        ("/v2/models/digits/infer/", "infer", "digits", None),
        ("/v2/models/digits/versions/3/infer", "infer", "digits", "3"),
        ("/v2/models/digits/versions/v1.2%2F3/infer/", "infer", "digits", "v1.2/3"),
        ("/v2/models/m-2vTeoZfP/infer/", "infer", "m-2vTeoZfP", None),
        ("/v2/models/team%2Fdigits%20one/infer", "infer", "team/digits one", None),
        ("/v2/models/versions/infer", "infer", "versions", None),
        ("/v2/models/llm/generate", "infer", "llm", None),
        ("/v2/models/llm/versions/1/generate", "infer", "llm", "1"),
        ("/v2/models/llm/generate_stream", "stream", "llm", None),
        ("/v2/models/llm/versions/1/infer_stream/", "stream", "llm", "1"),
    ],
)
def test_a_call(path: str, kind: str, model: str, version: str | None) -> None:
    call = V2_REST.recognise(V2_REST, "POST", path)
    assert call is not None
    assert (call.protocol, call.kind, call.model, call.version) == (V2_REST, kind, model, version)


@pytest.mark.parametrize(
    "path",
    [
        "/v2",
        "/v2/",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/digits",
        "/v2/models/digits/ready",
        "/v2/models/digits/versions/1",
        "/v2/models/digits/versions/1/ready",
        "/v2/models//infer",
        "/v2/models/digits/versions//infer",
        "/v2/models/team/digits/infer",
        "/v2/models/digits/infer//",
        "/v2/models/digits/infers",
        "/v2/models/digits/infer\n",
        "/v2/repository/index",
        "/v2/repository/models/digits/load",
        "/v2/repository/models/infer/unload",
        "/prefix/v2/models/digits/infer",
        "/V2/models/digits/infer",
        "",
    ],
)
def test_no_call(path: str) -> None:
    assert V2_REST.recognise(V2_REST, "POST", path) is None


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS", "HEAD", "post"])
def test_no_call_by_its_method(method: str) -> None:
    assert V2_REST.recognise(V2_REST, method, "/v2/models/digits/infer") is None


def test_escapes_that_are_no_text_are_survived() -> None:
    call = V2_REST.recognise(V2_REST, "POST", "/v2/models/a%ff%zz/infer")
    assert call is not None
    assert call.model == "a\ufffd%zz"
