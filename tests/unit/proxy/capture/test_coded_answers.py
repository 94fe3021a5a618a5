"""What was taken out of a request is in no answer that came coded, or that we write as base64."""

import base64
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.json_paths import GONE
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.prepared import Prepared
from inference_store.proxy.capture.taken import GAP, Taken
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import recognised
from inference_store.proxy.rules import Redaction, Rules
from tests.exchanges import exchange
from tests.settings import make_settings

SECRET = "José Quux"
JSON: Headers = [("content-type", "application/json")]
TEXT: Headers = [("content-type", "text/plain; charset=latin-1")]
ITEMS = [{"key": "user", "type": "string", "value": SECRET}]


def request(**parameters: Any) -> bytes:
    one = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hello"]}
    return orjson.dumps({"inputs": [{**one, "parameters": parameters}]})


# each with a request that holds the secret where it names it, and nowhere else
ASKED = {
    "metadata": (request(metadata=ITEMS), JSON),
    "path": (request(user=SECRET), JSON),
    "header": (request(), [*JSON, ("x-user", SECRET.encode().decode("latin-1"))]),
}
RULES = {
    "metadata": Redaction(what="metadata", name="user"),
    "path": Redaction(what="path", name="inputs[].parameters"),
    "header": Redaction(what="header", name="x-user"),
}


def prepared(made: Exchange, rule: Redaction, protocol: str = "v2") -> Prepared:
    call = recognised({protocol}, "rest", "POST", made.path)
    assert call is not None
    preparation = Preparation(make_settings(ProxySettings, proxy_upstream="http://up"))
    chosen = preparation.choose(Work(made, call, Rules(redactions=(rule,)), "m"))
    assert chosen is not None
    return preparation.prepare(chosen, "p", 1)


def asked(rule: str, answer: bytes, headers: Headers = JSON, **changes: Any) -> Exchange:
    body, sent = ASKED[rule]
    made = exchange(body, answer, path="/v2/models/m/infer", request_headers=sent)
    return replace(made, response_headers=headers, **changes)


def everything(one: Prepared) -> bytes:
    """All that is written, and all bytes in it that stand there as base64."""
    found = [each.data for each in one.blobs] + [each.value for each in one.messages]
    for raw in list(found):
        waiting = [orjson.loads(raw)] if raw[:1] in b"{[" else []
        while waiting:
            value = waiting.pop()
            if isinstance(value, (dict, list)):
                waiting += value.values() if isinstance(value, dict) else value
            elif isinstance(value, str) and len(value) % 4 == 0 and len(value) > 8:
                try:
                    found.append(base64.b64decode(value, validate=True))
                except ValueError:
                    waiting += [orjson.loads(value)] if value[:1] in "{[" else []
    return b"\n".join(found)


def response(one: Prepared) -> Any:
    found = [each.data for each in one.blobs if each.key.endswith("response")]
    return orjson.loads(found[0]) if found else None


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("protocol", ["v2", "raw"])
@pytest.mark.parametrize("coding", ["zstd", "br", "gzip"])
def test_an_answer_whose_coding_cannot_be_undone_is_not_kept(
    rule: str, protocol: str, coding: str
) -> None:
    answer = b"(\xb5/\xfd" + orjson.dumps({"parameters": {"metadata": ITEMS}})
    made = asked(rule, answer, [*JSON, ("content-encoding", coding)])
    one = prepared(made, RULES[rule], protocol)
    assert b"Quux" not in everything(one)
    assert response(one) is None
    event = orjson.loads(one.messages[0].value)
    assert event.get("inference_storage_key", "") == ""
    metadata = next(each.data for each in one.blobs if each.key.endswith("metadata"))
    capture = orjson.loads(metadata)["capture"]
    assert "the answer is not kept: its coding cannot be undone" in capture["problem"]
    assert capture["response_bytes"] == len(answer)


def test_a_coded_answer_that_broke_off_is_not_kept() -> None:
    answer = Body(parts=(b"(\xb5/\xfd Quux",), size=99, whole=False)
    made = asked("metadata", b"", [("content-encoding", "zstd")], response=answer)
    assert b"Quux" not in everything(prepared(made, RULES["metadata"], "raw"))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("coding", ["latin-1", "utf-16"])
def test_an_answer_that_is_no_utf8_has_lost_it(rule: str, coding: str) -> None:
    answer = f"user={SECRET}; voilà".encode(coding)
    one = prepared(asked(rule, answer, TEXT), RULES[rule], "raw")
    assert SECRET.encode("latin-1") not in everything(one)
    assert SECRET.encode("utf-16-le") not in everything(one)
    coded = response(one)["outputs"][0]["data"][0]["b64"]
    assert base64.b64decode(coded).decode(coding) == f"user={GAP}; voilà"


@pytest.mark.parametrize("rule", RULES)
def test_a_failure_that_is_no_utf8_does_not_tell_it(rule: str) -> None:
    one = prepared(
        asked(rule, f"no {SECRET}: ö".encode("latin-1"), TEXT, http_status=400), RULES[rule]
    )
    event = orjson.loads(one.messages[0].value)
    assert event["error"].startswith("no ")
    assert "Quux" not in event["error"]
    assert b"Quux" not in everything(one)


@pytest.mark.parametrize("protocol", ["v2", "raw"])
@pytest.mark.parametrize("is_json", [True, False])
def test_no_beginning_of_it_is_left_where_a_long_failure_is_cut_off(
    protocol: str, is_json: bool
) -> None:
    value = "Quux-" + "x" * 100
    body, sent = request(user=value), JSON
    text = "a" * 4050 + value + " is unknown"
    answer = orjson.dumps({"error": text}) if is_json else text.encode()
    made = exchange(body, answer, path="/v2/models/m/infer", http_status=400)
    made = replace(made, request_headers=sent, response_headers=JSON if is_json else TEXT)
    one = prepared(made, RULES["path"], protocol)
    event = orjson.loads(one.messages[0].value)
    assert event["error"].endswith("a" + GAP + " is unknown")
    assert b"Quux" not in everything(one)


def test_metadata_in_an_answer_that_is_no_utf8_are_not_kept() -> None:
    """A value too short to be looked for, and under its key."""
    answer = '{"user": "7", "à": 1'.encode("latin-1")
    one = prepared(asked("metadata", answer, TEXT), RULES["metadata"], "raw")
    assert b'"user": "7"' not in everything(one)
    assert response(one) is None


def test_binary_elements_have_lost_it() -> None:
    """One element that is no text makes base64 of all of them."""
    texts = [SECRET.encode(), b"\xff\xfe\xfd"]
    raw = b"".join(len(each).to_bytes(4, "little") + each for each in texts)
    one_output = {"name": "o", "datatype": "BYTES", "shape": [2]}
    head = orjson.dumps({"outputs": [{**one_output, "parameters": {"binary_data_size": len(raw)}}]})
    headers = [*JSON, ("inference-header-content-length", str(len(head)))]
    one = prepared(asked("path", head + raw, headers), RULES["path"])
    assert b"Quux" not in everything(one)
    data = response(one)["outputs"][0]["data"]
    assert [base64.b64decode(each) for each in data] == [GAP.encode(), texts[1]]


@pytest.mark.parametrize("rule", [RULES["metadata"], RULES["path"], Redaction(what="input")])
@pytest.mark.parametrize("coding", ["zstd", "br"])
def test_of_a_request_whose_coding_cannot_be_undone_nothing_is_kept(
    rule: Redaction, coding: str
) -> None:
    body = b"(\xb5/\xfd" + request(metadata=ITEMS, user=SECRET)
    headers = [*JSON, ("content-encoding", coding)]
    said = orjson.dumps({"error": f"cannot read {SECRET}"})
    made = exchange(body, said, path="/v2/models/m/infer", request_headers=headers, http_status=400)
    one = prepared(made, rule)
    assert b"Quux" not in everything(one)
    assert not [each for each in one.blobs if each.key.endswith("/data")]
    metadata = next(each.data for each in one.blobs if each.key.endswith("metadata"))
    assert orjson.loads(metadata)["request"]["messages"] is None


def test_base64_without_it_stays_as_it_came() -> None:
    answer = b'{"b64":  "/////w==", "base64": "hello", "x": "aGVsbG8"}'
    assert answer in [each.data for each in prepared(asked("path", answer), RULES["path"]).blobs]


@given(st.text(min_size=4, max_size=9), st.binary(max_size=20))
def test_nothing_is_raised_on_any_value(value: str, raw: bytes) -> None:
    taken = Taken()
    taken.note([value], GONE)
    answer = orjson.dumps({"b64": base64.b64encode(raw).decode()})
    found = orjson.loads(taken.answer(answer))
    assert isinstance(next(iter(found.values())), str)
