"""What was taken out of a request is not in what was answered to it."""

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
from inference_store.proxy.capture.prepared import Prepared
from inference_store.proxy.capture.taken import GAP, MOST_VALUES, Taken
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import PROTOCOLS, recognised
from inference_store.proxy.rules import Redaction, Rules
from tests.exchanges import exchange
from tests.settings import make_settings
from tests.unit.proxy.protocols.v2_grpc.calls import INFER
from tests.unit.proxy.protocols.v2_grpc.calls import request as grpc_request

SECRET = 'Jos\u00e9 "Pepe" Quux'
PATH = "/v2/models/m/infer"


def request(
    text: str = "hello", *, metadata: Any = (), parameters: Any = None, **more: Any
) -> bytes:
    all_parameters = {"metadata": list(metadata), **(parameters or {})}
    one = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    return orjson.dumps({**more, "inputs": [{**one, "parameters": all_parameters}]})


BY_PATH = Redaction(what="path", name="inputs[].parameters.user")
# each with a request that holds the secret where it names it
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


def answer(*outputs: Any, **more: Any) -> bytes:
    one = {"name": "out", "datatype": "BYTES", "shape": [1], "data": list(outputs)}
    return orjson.dumps({"model_name": "m", **more, "outputs": [one]})


def prepared(made: Exchange, *rules: Redaction, model: str = "m") -> Prepared:
    call = recognised(PROTOCOLS.keys() - {"raw", "raw-grpc"}, made.transport, "POST", made.path)
    assert call is not None
    settings = make_settings(ProxySettings, proxy_upstream="http://up", proxy_redaction_key="k")
    preparation = Preparation(settings)
    chosen = preparation.choose(Work(made, call, Rules(redactions=rules), model))
    assert chosen is not None
    return preparation.prepare(chosen, "p", 1)


def written(one: Prepared, kind: str = "") -> list[str]:
    """The texts of all JSON that is written, each without its escapes."""
    blobs = [each.data for each in one.blobs if each.key.endswith(kind)]
    return [plain(each) for each in (*blobs, *(each.value for each in one.messages))]


def plain(raw: bytes) -> str:
    """JSON and all JSON inside its texts."""
    try:
        waiting = [orjson.loads(raw)]
    except orjson.JSONDecodeError:
        return raw.decode()
    found: list[str] = []
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            found.append(value)
            if value[:1] in ("{", "[", '"'):
                found.append(plain(value.encode()))
    return "\n".join(found)


ECHOES: dict[str, bytes] = {
    "alone": answer(SECRET),
    "in a sentence": answer(f"I am {SECRET}, hello"),
    "as a name": answer({SECRET: 0.9}),
    "in JSON in a text": answer(orjson.dumps({"who": SECRET}).decode()),
    "escaped": answer().replace(b"[]", b'["Jos\\u00e9 \\u0022Pepe\\u0022 Quux"]'),
    "as the id": answer(1, id=SECRET),
    "as a parameter": answer(1, parameters={"user": SECRET}),
    "beside JSON": SECRET.encode() + b" is unknown",
}


@pytest.mark.parametrize("where", REDACTED)
@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("how", ["drop", "hash"])
def test_an_answer_does_not_repeat_it(where: str, echo: str, how: Any) -> None:
    rule, asked = REDACTED[where]
    said = ECHOES[echo]
    response = Body(parts=(said,), size=len(said))
    made = replace(asked, response=response, error=f"no {SECRET}")
    one = prepared(made, replace(rule, how=how))
    assert not [text for text in written(one) if SECRET in text]
    event = orjson.loads(one.messages[0].value)
    assert event["error"].startswith("no ")
    assert "Quux" not in event["error"]


def test_a_hash_stands_where_the_value_was() -> None:
    body = request(parameters={"user": SECRET})
    made = exchange(body, answer(f"I am {SECRET}"), path=PATH)
    one = prepared(made, replace(BY_PATH, how="hash"))
    hashed = "hmac-sha256:" + hmac.digest(b"k", SECRET.encode(), "sha256").hex()
    (response,) = [each.data for each in one.blobs if each.key.endswith("response")]
    assert orjson.loads(response)["outputs"][0]["data"] == [f"I am {hashed}"]


def test_an_answer_without_it_stays_byte_for_byte() -> None:
    said = b'{"model_name":  "m", "outputs": [{"name": "x", "data": [1.50, "\\u00e9"]}]}'
    one = prepared(exchange(request(parameters={"user": SECRET}), said, path=PATH), BY_PATH)
    assert said in [each.data for each in one.blobs]


@pytest.mark.parametrize("name", ["x-request-id", "chariot-inference-base-id"])
@pytest.mark.parametrize("secret", ["7", SECRET])
def test_an_id_of_a_header_that_is_dropped_is_no_id(name: str, secret: str) -> None:
    """Not by the answer's header, either, which repeats it."""
    made = exchange(
        request(id="r-1"),
        answer(1, id=secret),
        path=PATH,
        request_headers=[(name, secret)],
        response_headers=[(ID_HEADER, secret)],
    )
    one = prepared(made, Redaction(what="header", name=name))
    event = orjson.loads(one.messages[0].value)
    assert (event["inference_id"], event.get("aliases")) == ("r-1", None)
    one = prepared(made, Redaction(what="header", name=name, how="hash"))
    event = orjson.loads(one.messages[0].value)
    hashed = "hmac-sha256:" + hmac.digest(b"k", secret.encode(), "sha256").hex()
    assert (event["inference_id"], event["aliases"]) == ("r-1", [hashed])


def test_an_id_that_a_path_takes_out_is_no_id() -> None:
    for rule in (Redaction(what="path", name="id"), Redaction(what="path", name="id", how="hash")):
        made = exchange(request(id="n-4711"), answer(1, id="n-4711"), path=PATH)
        event = orjson.loads(prepared(made, rule).messages[0].value)
        assert "n-4711" not in (event["inference_id"], *event.get("aliases", []))
        assert event["inference_id"].startswith("hmac-sha256:") is (rule.how == "hash")


def test_over_grpc_the_id_and_the_input_are_not_repeated() -> None:
    message = grpc_request(SECRET.encode(), id=SECRET).SerializeToString()
    made = exchange(
        transport="grpc",
        path=INFER,
        method=INFER,
        request=Body(parts=(message,), size=len(message)),
        response=Body(),
        http_status=None,
        grpc_code=3,
        error=f"no {SECRET}",
    )
    one = prepared(made, Redaction(what="path", name="id"))
    assert not [text for text in written(one) if SECRET in text]


def test_a_request_that_cannot_be_read_is_not_quoted_by_its_failure() -> None:
    said = orjson.dumps({"error": f"invalid JSON near {SECRET}"})
    body = request(parameters={"user": SECRET}) + b"}"
    one = prepared(exchange(body, said, path=PATH, http_status=400), BY_PATH)
    assert not [text for text in written(one) if SECRET in text]
    assert "not kept" in orjson.loads(one.messages[0].value)["error"]
    fine = prepared(exchange(body, answer(1), path=PATH), BY_PATH)
    assert [each for each in fine.blobs if each.key.endswith("response")]


def test_a_value_inside_another_leaves_nothing_of_it() -> None:
    taken = Taken()
    taken.note(["abcd", {"a": "abcdefgh"}, 4711001], GONE)
    assert taken.without("abcdefgh abcd 4711001") == " ".join([GAP] * 3)
    assert taken.answer(b'{"n": 4711001, "m": 47110010}') == b'{"n": "[redacted]", "m": 47110010}'


def test_short_texts_and_short_numbers_are_only_taken_for_ids() -> None:
    taken = Taken()
    taken.note(["cat", 12345, 0.5, True, None], GONE)
    assert taken.answer(b'["cat", 12345]') == b'["cat", 12345]'
    assert (taken.name("cat"), taken.name("cats")) == (None, "cats")


def test_so_many_are_looked_for_and_no_more() -> None:
    taken = Taken()
    taken.note([f"value {number:04}" for number in range(1000)], GONE)
    assert sum(taken.without(f"value {number:04}") == GAP for number in range(1000)) == MOST_VALUES


@given(st.binary(max_size=80) | st.text(max_size=40).map(lambda text: orjson.dumps([text])))
def test_nothing_is_raised_on_any_answer(raw: bytes) -> None:
    taken = Taken()
    taken.note(["aaaa", "\ud800bbbb"], GONE)
    found = taken.answer(raw)
    assert found == raw or GAP.encode() in found
