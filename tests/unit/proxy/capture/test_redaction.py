"""Nothing that is to be taken out is found anywhere, whatever surrounds it."""

import gzip
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.capture.redaction import GONE, Redactor, change_values, parse_path
from inference_store.proxy.configuration import Redaction, Rules
from inference_store.proxy.exchange import Body, Exchange, header
from inference_store.proxy.protocols.protocol import Inference, Reading
from tests.exchanges import CALL, exchange, request_body

from .captured import Captured, capture

SECRET = "4711-secret"
ITEM = {"key": "user", "type": "string", "value": SECRET}
OTHER = {"key": "camera", "type": "string", "value": "hall"}
NAMED = [ITEM, OTHER]
BY_USER = Rules(redactions=(Redaction(what="metadata", name="user"),))


def prepare(sample: Exchange, rules: Rules, **settings: Any) -> Captured:
    return capture(sample, rules, call=CALL, **settings)


def test_a_keyed_hash_is_the_same_for_the_same_value_and_key_alone() -> None:
    rules = Rules(redactions=(Redaction(what="metadata", name="user", how="hash"),))
    sample = exchange(request_body(metadata=NAMED))
    first, again, other = (
        prepare(sample, rules, proxy_redaction_key=key).list_entries()["user"] for key in "aab"
    )
    assert first == again != other
    # without a key there is no hash that could not be guessed: dropped
    assert "user" not in prepare(sample, rules).list_entries()


def test_a_redacted_path_is_nowhere_and_the_rest_can_be_sent_again() -> None:
    rules = Rules(redactions=(Redaction(what="path", name="inputs[].parameters.user"),))
    body = orjson.loads(request_body(metadata=[OTHER]))
    body["inputs"][0]["parameters"]["user"] = SECRET
    captured = prepare(exchange(orjson.dumps(body)), rules)
    assert not captured.holds(SECRET.encode())
    del body["inputs"][0]["parameters"]["user"]
    (again,) = captured.rebuild()
    assert orjson.loads(again) == body


def test_a_redacted_header_is_nowhere() -> None:
    """Nor a parameter of the URL with its name or value."""
    headers = [("x-user", SECRET), ("x-request-id", SECRET)]
    redactions = (
        Redaction(what="header", name="X-User"),
        Redaction(what="header", name="x-request-id"),
    )
    rules = Rules(redactions=redactions, metadata_headers=("x-user", "x-request-id"))
    query = f"a={SECRET}&x-user=4711-secret%20&b=1"
    captured = prepare(exchange(request_headers=headers, query=query), rules)
    assert not captured.holds(SECRET.encode())
    assert captured.requests[0]["query"] == "b=1"


@pytest.mark.parametrize("how", ["drop", "hash"])
def test_a_dropped_input_leaves_nothing_but_a_keyed_hash(how: Any) -> None:
    text = SECRET.encode() * 10
    rules = Rules(redactions=(Redaction(what="input", how=how),))
    captured = prepare(exchange(request_body(text, prompts=1)), rules, proxy_redaction_key="k")
    assert not captured.holds(SECRET.encode())
    assert not captured.holds(b"prompts")
    (event,) = captured.events
    assert (event.data, event.extras.data_size) == (None, None)
    assert (event.extras.data_hash or "").startswith("hmac-sha256:") is (how == "hash")


def test_does_not_keep_unreadable_bodies_with_redaction() -> None:
    for body in (b"user=" + SECRET.encode(), b'{"user": "' + SECRET.encode()):
        captured = prepare(exchange(body), BY_USER)
        assert not captured.holds(SECRET.encode())
        assert captured.events[0].data is None


def test_secrets_of_the_transport_are_never_kept_whatever_is_allowed() -> None:
    names = ["authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"]
    names += ["x-auth-token", "x-amz-security-token", "ocp-apim-subscription-key"]
    names += ["x-forwarded-client-cert"]
    sample = exchange(
        request_headers=[
            *((name, SECRET) for name in [*names, "x-not-allowed"]),
            *(("x-camera", "north"), ("accept", "*/*")),
        ],
        query=f"api_key={SECRET}&token={SECRET}&a=1&sig={SECRET}",
    )
    captured = prepare(sample, Rules(metadata_headers=(*names, "x-camera")))
    assert not captured.holds(SECRET.encode())
    assert captured.requests[0]["query"] == "a=1"
    assert captured.requests[0]["headers"] == [["x-camera", "north"], ["accept", "*/*"]]
    assert captured.find_metadata()["standard_metadata"] == {"x-camera": "north"}


def make_redactor(*redactions: Redaction, key: str = "k") -> Redactor:
    return Redactor(redactions, key, limit=1 << 20)


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "text": lambda inner: orjson.dumps(inner).decode(),
    "list": lambda inner: [inner],
    "metadata": lambda inner: {"metadata": inner},
    "section": lambda inner: {"extended_metadata": [inner]},
    "another key": lambda inner: [{"key": "trip", "type": "object", "value": inner}],
    "another name": lambda inner: {"standard_metadata": {"trip": inner}},
}


NAMES = {"standard_metadata": {"user": SECRET}, "extended_metadata": NAMED}


@given(
    st.sampled_from([NAMED, NAMES]),
    st.lists(st.sampled_from(sorted(WRAPPED)), max_size=9)
    | st.sampled_from([[kind] * 40 for kind in WRAPPED if kind != "text"]),
    st.sampled_from(["rest", "grpc"]),
)
def test_finds_a_key_at_any_depth(envelope: Any, kinds: list[str], transport: str) -> None:
    """Or the value around it is not kept."""
    for kind in kinds:
        envelope = WRAPPED[kind](envelope)
    redaction = make_redactor(Redaction(what="metadata", name="user"))
    if transport == "rest":
        body = orjson.dumps({"inputs": [{"parameters": {"metadata": envelope}}]})
        result = redaction.request(exchange(body)).request.bytes
    else:
        reading = Reading(inferences=[Inference(metadata=[orjson.dumps(envelope)])])
        (redacted,) = redaction.reading(reading, exchange(transport="grpc")).inferences
        result = b"".join(redacted.metadata)
    assert SECRET.encode() not in result
    assert (b"hall" in result) is (len(kinds) < 10)


def test_metadata_that_are_not_named_stay_as_they_were() -> None:
    value = '{"a":  [1.50, "\\u00e9"]}'
    items = [{"key": "trip", "type": "object", "value": value}, {"key": "b", "value": "a user: {"}]
    inference = Inference(metadata=[orjson.dumps(items)])
    redaction = make_redactor(Redaction(what="metadata", name="user"))
    (redacted,) = redaction.reading(Reading(inferences=[inference]), exchange()).inferences
    assert orjson.loads(redacted.metadata[0]) == items


@given(st.binary(max_size=60), st.sampled_from(["", "3", "x", "999999999999999999999"]))
def test_nothing_is_raised_on_any_body(body: bytes, length: str) -> None:
    headers = [("inference-header-content-length", length)] if length else []
    rules = (Redaction(what="metadata", name="user"), Redaction(what="path", name="a[].b"))
    result = make_redactor(*rules).request(exchange(body, request_headers=headers))
    assert result.request.whole or result.request.size == len(body)


def test_the_binary_part_of_a_body_stays_behind_its_json() -> None:
    head = orjson.dumps({"inputs": [{"parameters": {"metadata": [ITEM]}}]})
    tail = bytes(range(256))
    headers = [("inference-header-content-length", str(len(head))), ("content-length", "1")]
    sample = exchange(head + tail, request_headers=headers)
    result = make_redactor(Redaction(what="metadata", name="user")).request(sample)
    length = int(header(result.request_headers, "inference-header-content-length") or "")
    assert orjson.loads(result.request.bytes[:length]) == {
        "inputs": [{"parameters": {"metadata": []}}]
    }
    assert result.request.bytes[length:] == tail
    assert header(result.request_headers, "content-length") == str(result.request.size)


def test_json_lines_are_redacted_line_by_line() -> None:
    line = orjson.dumps({"parameters": {"metadata": [ITEM, OTHER]}})
    result = make_redactor(Redaction(what="metadata", name="user")).request(
        exchange(line + b"\n" + line + b"\n")
    )
    lines = result.request.bytes.splitlines()
    expected = {"parameters": {"metadata": [OTHER]}}
    assert [orjson.loads(line) for line in lines] == [expected, expected]


def test_a_coded_body_of_several_members_is_redacted_whole() -> None:
    first, second = b'{"user": "4711-secret", ', b'"camera": "hall"}'
    coded = gzip.compress(first) + gzip.compress(second)
    sample = exchange(coded, request_headers=[("content-encoding", "gzip")])
    result = make_redactor(Redaction(what="path", name="user")).request(sample)
    assert result.request.bytes == b'{"camera": "hall"}'


def test_numbers_that_are_not_taken_out_keep_their_digits() -> None:
    body = b'{"user": 1, "x": 0.10000000000000000000000001, "y": 1e400}'
    result = make_redactor(Redaction(what="path", name="user")).request(exchange(body))
    assert result.request.bytes == b'{"x": 0.10000000000000000000000001, "y": 1e400}'


def test_of_a_repeated_name_no_value_stays() -> None:
    twice = b'{"id": "4711-secret", "id": "4711-secret", "metadata": %b, "metadata": []}'
    item = orjson.dumps([ITEM])
    body = b'{"inputs": [%b], "inputs": [%b]}' % (twice % item, twice % item)
    rules = Redaction(what="metadata", name="user"), Redaction(what="path", name="inputs[].id")
    result = make_redactor(*rules).request(exchange(body)).request.bytes
    assert orjson.loads(result) == {"inputs": [{"metadata": []}]}


def test_over_grpc_a_path_takes_the_whole_input_along() -> None:
    inference = Inference(data=b"datum", metadata=[orjson.dumps([ITEM])])
    reading = Reading(inferences=[inference], standard={"arguments": {"ssn": 1}, "tokens": 2})
    sample = exchange(transport="grpc", request=Body(parts=(b"\0" * 9,), size=9))
    for name in ("inputs[].data", "inputs", "id", "inputs[].input"):
        redaction = make_redactor(Redaction(what="path", name=name))
        assert redaction.request(sample).request == sample.request
        (redacted,) = redaction.reading(reading, sample).inferences
        assert (redacted.data, redacted.metadata) == (None, ())
        assert redaction.reading(reading, sample).standard == {"tokens": 2}
        assert not redaction.keeps_body("grpc")


def test_a_path_has_steps_or_is_refused() -> None:
    for path, steps in (
        ("a", ("a",)),
        ("inputs[].parameters.user", ("inputs", "[]", "parameters", "user")),
        ("tags[]", ("tags", "[]")),
        ("[].a", ("[]", "a")),
        (r"a.b\.c.d", ("a", "b.c", "d")),
    ):
        assert parse_path(path) == steps
    for path in ("", ".", "a..b", "a[0]", "a[", "a\\"):
        with pytest.raises(ValueError, match="path"):
            parse_path(path)


def test_what_a_path_names_is_taken_out() -> None:
    for path, remaining in (
        ("a", {"b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
        ("b[].c", {"a": 1, "b": [{"d": 3}, {}, 5]}),
        ("b[]", {"a": 1, "b": []}),
        ("b", {"a": 1}),
        ("x.y", {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
        ("a[].b", {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
    ):
        document = {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}
        assert change_values(document, parse_path(path), lambda _: GONE) == remaining, path
