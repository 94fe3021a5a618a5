"""Values removed from a request are not in its answer."""

import hmac
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.ids import ID_HEADER
from inference_store.proxy.capture.json_paths import GONE
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.prepared_capture import PreparedCapture
from inference_store.proxy.capture.removed_values import GAP, MOST_VALUES, RemovedValues
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import PROTOCOLS, recognise_call
from inference_store.proxy.rules import Redaction, Rules
from tests.exchanges import exchange
from tests.settings import make_settings
from tests.unit.proxy.protocols.v2_grpc.calls import INFER
from tests.unit.proxy.protocols.v2_grpc.calls import make_request as grpc_request

SECRET = 'Jos\u00e9 "Pepe" Quux'
PATH = "/v2/models/m/infer"


def request(
    text: str = "hello", *, metadata: Any = (), parameters: Any = None, **more: Any
) -> bytes:
    all_parameters = {"metadata": list(metadata), **(parameters or {})}
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    return orjson.dumps({**more, "inputs": [{**tensor, "parameters": all_parameters}]})


BY_PATH = Redaction(what="path", name="inputs[].parameters.user")
# each with a request that holds the secret at the named position
REDACTED: dict[str, tuple[Redaction, Exchange]] = {
    "path": (BY_PATH, exchange(request(parameters={"user": SECRET}), path=PATH)),
    "a path to more": (
        Redaction(what="path", name="inputs[].parameters"),
        exchange(request(parameters={"user": {"names": [SECRET]}}), path=PATH),
    ),
    "the id": (Redaction(what="path", name="id"), exchange(request(id=SECRET), path=PATH)),
    "metadata": (
        Redaction(what="metadata", name="user"),
        exchange(request(metadata=[{"key": "user", "value": SECRET}]), path=PATH),
    ),
    "header": (
        Redaction(what="header", name="X-User"),
        exchange(request(), path=PATH, request_headers=[("x-user", SECRET)]),
    ),
    "input": (Redaction(what="input"), exchange(request(SECRET), path=PATH)),
}


def make_answer(*outputs: Any, **more: Any) -> bytes:
    tensor = {"name": "out", "datatype": "BYTES", "shape": [1], "data": list(outputs)}
    return orjson.dumps({"model_name": "m", **more, "outputs": [tensor]})


def prepare(sample: Exchange, *rules: Redaction, model: str = "m") -> PreparedCapture:
    call = recognise_call(
        PROTOCOLS.keys() - {"raw", "raw-grpc"}, sample.transport, "POST", sample.path
    )
    assert call is not None
    settings = make_settings(ProxySettings, proxy_upstream="http://up", proxy_redaction_key="k")
    preparation = Preparation(settings)
    chosen = preparation.choose(Work(sample, call, Rules(redactions=rules), model))
    assert chosen is not None
    return preparation.prepare(chosen, "p", 1)


def list_json_texts(capture: PreparedCapture, kind: str = "") -> list[str]:
    """The texts of all JSON that is written, each without its escapes."""
    blobs = [blob.data for blob in capture.blobs if blob.key.endswith(kind)]
    return [
        unescape(content) for content in (*blobs, *(message.value for message in capture.messages))
    ]


def unescape(raw: bytes) -> str:
    """Decode JSON and all JSON inside its texts."""
    try:
        waiting = [orjson.loads(raw)]
    except orjson.JSONDecodeError:
        return raw.decode()
    listed: list[str] = []
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            listed.append(value)
            if value[:1] in ("{", "[", '"'):
                listed.append(unescape(value.encode()))
    return "\n".join(listed)


ECHOES: dict[str, bytes] = {
    "alone": make_answer(SECRET),
    "in a sentence": make_answer(f"I am {SECRET}, hello"),
    "as a name": make_answer({SECRET: 0.9}),
    "in JSON in a text": make_answer(orjson.dumps({"who": SECRET}).decode()),
    "escaped": make_answer().replace(b"[]", b'["Jos\\u00e9 \\u0022Pepe\\u0022 Quux"]'),
    "as the id": make_answer(1, id=SECRET),
    "as a parameter": make_answer(1, parameters={"user": SECRET}),
    "beside JSON": SECRET.encode() + b" is unknown",
}


@pytest.mark.parametrize("where", REDACTED)
@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("how", ["drop", "hash"])
def test_an_answer_does_not_repeat_it(where: str, echo: str, how: Any) -> None:
    rule, sample_request = REDACTED[where]
    response_bytes = ECHOES[echo]
    response = Body(parts=(response_bytes,), size=len(response_bytes))
    sample = replace(sample_request, response=response, error=f"no {SECRET}")
    capture = prepare(sample, replace(rule, how=how))
    assert not [text for text in list_json_texts(capture) if SECRET in text]
    event = orjson.loads(capture.messages[0].value)
    assert event["error"].startswith("no ")
    assert "Quux" not in event["error"]


def test_a_hash_replaces_the_value() -> None:
    body = request(parameters={"user": SECRET})
    sample = exchange(body, make_answer(f"I am {SECRET}"), path=PATH)
    capture = prepare(sample, replace(BY_PATH, how="hash"))
    hashed = "hmac-sha256:" + hmac.digest(b"k", SECRET.encode(), "sha256").hex()
    (response,) = [blob.data for blob in capture.blobs if blob.key.endswith("response")]
    assert orjson.loads(response)["outputs"][0]["data"] == [f"I am {hashed}"]


def test_an_answer_without_it_stays_byte_for_byte() -> None:
    response_bytes = b'{"model_name":  "m", "outputs": [{"name": "x", "data": [1.50, "\\u00e9"]}]}'
    capture = prepare(
        exchange(request(parameters={"user": SECRET}), response_bytes, path=PATH), BY_PATH
    )
    assert response_bytes in [blob.data for blob in capture.blobs]


@pytest.mark.parametrize("name", ["x-request-id", "chariot-inference-base-id"])
@pytest.mark.parametrize("secret", ["7", SECRET])
def test_does_not_use_the_id_of_a_dropped_header(name: str, secret: str) -> None:
    """Not by the answer's header, either, which repeats it."""
    sample = exchange(
        request(id="r-1"),
        make_answer(1, id=secret),
        path=PATH,
        request_headers=[(name, secret)],
        response_headers=[(ID_HEADER, secret)],
    )
    capture = prepare(sample, Redaction(what="header", name=name))
    event = orjson.loads(capture.messages[0].value)
    assert (event["inference_id"], event.get("aliases")) == ("r-1", None)
    capture = prepare(sample, Redaction(what="header", name=name, how="hash"))
    event = orjson.loads(capture.messages[0].value)
    hashed = "hmac-sha256:" + hmac.digest(b"k", secret.encode(), "sha256").hex()
    assert (event["inference_id"], event["aliases"]) == ("r-1", [hashed])


def test_does_not_use_an_id_removed_by_a_path() -> None:
    for rule in (Redaction(what="path", name="id"), Redaction(what="path", name="id", how="hash")):
        sample = exchange(request(id="n-4711"), make_answer(1, id="n-4711"), path=PATH)
        event = orjson.loads(prepare(sample, rule).messages[0].value)
        assert "n-4711" not in (event["inference_id"], *event.get("aliases", []))
        assert event["inference_id"].startswith("hmac-sha256:") is (rule.how == "hash")


def test_over_grpc_the_id_and_the_input_are_not_repeated() -> None:
    message = grpc_request(SECRET.encode(), id=SECRET).SerializeToString()
    sample = exchange(
        transport="grpc",
        path=INFER,
        method=INFER,
        request=Body(parts=(message,), size=len(message)),
        response=Body(),
        http_status=None,
        grpc_code=3,
        error=f"no {SECRET}",
    )
    capture = prepare(sample, Redaction(what="path", name="id"))
    assert not [text for text in list_json_texts(capture) if SECRET in text]


def test_a_request_that_cannot_be_read_is_not_quoted_by_its_failure() -> None:
    response_bytes = orjson.dumps({"error": f"invalid JSON near {SECRET}"})
    body = request(parameters={"user": SECRET}) + b"}"
    capture = prepare(exchange(body, response_bytes, path=PATH, http_status=400), BY_PATH)
    assert not [text for text in list_json_texts(capture) if SECRET in text]
    assert "not kept" in orjson.loads(capture.messages[0].value)["error"]
    fine = prepare(exchange(body, make_answer(1), path=PATH), BY_PATH)
    assert [blob for blob in fine.blobs if blob.key.endswith("response")]


def test_a_value_inside_another_leaves_nothing_of_it() -> None:
    removed = RemovedValues()
    removed.note(["abcd", {"a": "abcdefgh"}, 4711001], GONE)
    assert removed.replace_in_text("abcdefgh abcd 4711001") == " ".join([GAP] * 3)
    assert removed.answer(b'{"n": 4711001, "m": 47110010}') == b'{"n": "[redacted]", "m": 47110010}'


def test_removes_short_texts_and_numbers_only_as_ids() -> None:
    removed = RemovedValues()
    removed.note(["cat", 12345, 0.5, True, None], GONE)
    assert removed.answer(b'["cat", 12345]') == b'["cat", 12345]'
    assert (removed.name("cat"), removed.name("cats")) == (None, "cats")


def test_so_many_are_looked_for_and_no_more() -> None:
    removed = RemovedValues()
    removed.note([f"value {number:04}" for number in range(1000)], GONE)
    assert (
        sum(removed.replace_in_text(f"value {number:04}") == GAP for number in range(1000))
        == MOST_VALUES
    )


@given(st.binary(max_size=80) | st.text(max_size=40).map(lambda text: orjson.dumps([text])))
def test_nothing_is_raised_on_any_answer(raw: bytes) -> None:
    removed = RemovedValues()
    removed.note(["aaaa", "\ud800bbbb"], GONE)
    result = removed.answer(raw)
    assert result == raw or GAP.encode() in result
