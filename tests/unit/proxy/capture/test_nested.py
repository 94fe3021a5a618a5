"""JSON nested as deep as it can be read, at any place of a request or an answer, is captured."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from inference_store.proxy.capture.registrations import Work
from inference_store.proxy.configuration import Redaction, Rules, Sampling
from inference_store.proxy.protocols import recognise_call
from tests.exchanges import exchange

from .captured import NAMED_PROTOCOLS, make_preparation

DEPTH = 1000
HOLE = '"HOLE"'
TENSOR = {
    "name": "a",
    "datatype": "BYTES",
    "shape": [1],
    "data": ["x"],
    "parameters": {"metadata": [{"key": "k", "value": "v"}], "prompts": ["p"], "action": "b"},
}
SECOND = {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["x"]}
V2 = {"id": "1", "parameters": {"prompts": ["p"]}, "inputs": [TENSOR, SECOND]}
FUNCTION = {"function": {"name": "f", "arguments": "{}"}}
PART = {"type": "image_url", "image_url": {"url": "x"}}
TURN = {"role": "user", "content": [PART, {"type": "file", "file": 1}], "tool_calls": [FUNCTION]}
CHOICE = {"index": 0, "message": TURN, "delta": TURN, "finish_reason": "stop", "text": "t"}
KIND: dict[str, tuple[str, Any, Any]] = {
    "v2": ("/v2/models/m/infer", V2, {"id": "2", "outputs": [TENSOR], "parameters": {"a": 1}}),
    "generate": ("/v2/models/m/generate", {"text_input": "a", "parameters": {}}, {"text": "a"}),
    "chariot": (
        "/infer",
        {"input": "aGk=", "parameters": {"metadata": [1], "prompts": ["p"], "action": "a"}},
        {"output": [1], "detail": "x"},
    ),
    "kserve": ("/v1/models/m:predict", {"instances": [1, 2]}, {"predictions": [1, 2]}),
    "chat": ("/v1/chat/completions", {"model": "m", "messages": [TURN]}, {"choices": [CHOICE]}),
    "completions": ("/v1/completions", {"prompt": ["a", "b"]}, {"choices": [CHOICE]}),
}
SAMPLED = Sampling(share=0.5, key="prompts", always_errors=True, always_below=0.5)
REDACTED = (Redaction(what="metadata", name="k"), Redaction(what="path", name="inputs[].data"))


def list_with_hole(value: Any) -> Iterator[Any]:
    """The document with a hole in the place of each of its values, one after the other."""
    yield "HOLE"
    if isinstance(value, dict):
        for name, child in value.items():
            yield from ({**value, name: inner} for inner in list_with_hole(child))
    elif isinstance(value, list):
        for at, child in enumerate(value):
            yield from ([*value[:at], inner, *value[at + 1 :]] for inner in list_with_hole(child))


def make_bodies(document: Any) -> Iterator[bytes]:
    for with_hole in list_with_hole(document):
        text = orjson.dumps(with_hole).decode()
        # as much as is read together with what is around it; lists and objects take turns
        around = text[: text.index(HOLE)].count("[") + text[: text.index(HOLE)].count("{")
        pairs, odd = divmod(DEPTH - around, 2)
        deep = "[" * odd + '{"a":[' * pairs + "1" + "]}" * pairs + "]" * odd
        yield text.replace(HOLE, deep, 1).encode()


@pytest.mark.parametrize("kind", KIND)
@pytest.mark.parametrize("rules", [Rules(sampling=SAMPLED), Rules(redactions=REDACTED)])
def test_deep_nesting_loses_no_exchange(kind: str, rules: Rules) -> None:
    path, request, response = KIND[kind]
    pairs = [(body, orjson.dumps(response)) for body in make_bodies(request)]
    pairs += [(orjson.dumps(request), body) for body in make_bodies(response)]
    call = recognise_call(NAMED_PROTOCOLS, "rest", "POST", path)
    assert call is not None
    preparation = make_preparation()
    for body, answer in pairs:
        chosen = preparation.choose(Work(exchange(body, answer, path=path), call, rules, "m"))
        if chosen is not None:
            assert preparation.prepare(chosen, "p", 1).messages
