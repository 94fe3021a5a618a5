"""Language models behind other paths than OpenAI's chat: the same datum, text, names and tokens."""

from base64 import b64encode
from typing import Any

import orjson

from inference_store.proxy.protocols import Reading

from .exchanged import PIXEL, list_data, list_texts, make_exchange, read, read_call

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
CODED = b64encode(PIXEL).decode()
COUNTED_USAGE = {"input_tokens": 9, "output_tokens": 3}
TOKENS = {"prompt_tokens": 9, "completion_tokens": 3}
RESPONSE: dict[str, Any] = {
    "id": "resp-1",
    "model": "gpt",
    "status": "completed",
    "output": [{"type": "reasoning"}, {"content": [{"type": "output_text", "text": "Three."}]}],
    "usage": {**COUNTED_USAGE, "output_tokens_details": {"reasoning_tokens": 2}},
}
TOOL = {"type": "tool_use", "id": "t1", "name": "w", "input": {"a": 1}}
CALL = {"id": "t1", "type": "function", "function": {"name": "w", "arguments": '{"a":1}'}}
MESSAGE: dict[str, Any] = {
    **{"id": "msg-1", "type": "message", "role": "assistant", "model": "claude"},
    "content": [{"type": "text", "text": "Three."}, TOOL],
    "stop_reason": "tool_use",
    "usage": {**COUNTED_USAGE, "cache_read_input_tokens": 4},
}


def read_events(path: str, request: Any, *parts: Any) -> Reading:
    lines = b"".join(b"event: x\ndata: " + orjson.dumps(part) + b"\n\n" for part in parts)
    return read_call(path, request, lines, answered=[("content-type", "text/event-stream")])


def test_a_response() -> None:
    asked = {"model": "gpt", "instructions": "Count.", "input": "How many?"}
    text = {"type": "input_text", "text": "How many?"}
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{CODED}"}
    delta = {"type": "response.output_text.delta", "delta": "Three."}
    end = {"type": "response.completed", "response": RESPONSE}
    for reading in (
        read_call(RESPONSES, asked, RESPONSE),
        read_events(RESPONSES, asked, {"type": "response.created", "response": {}}, delta, end),
    ):
        assert (list_data(reading), list_texts(reading)) == ([b"How many?"], [["Three."]])
        assert (reading.model, reading.response_id, reading.problem) == ("gpt", "resp-1", None)
        assert reading.standard.items() >= (TOKENS | {"reasoning_tokens": 2}).items()
    for parts, datum in ([text], b"system: Count.\n\nuser: How many?"), ([text, image], PIXEL):
        turn = {**asked, "input": [{"role": "user", "content": parts}]}
        assert list_data(read_call(RESPONSES, turn, RESPONSE)) == [datum]
    broken = read_events(RESPONSES, asked, delta)
    assert (list_texts(broken), "broke off" in (broken.problem or "")) == ([["Three."]], True)


def test_a_message() -> None:
    asked = {"model": "claude", "system": "Count.", "messages": [{"role": "user", "content": "?"}]}
    begin, gain = {"type": "content_block_start"}, {"type": "content_block_delta"}
    start = {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}}
    events: list[dict[str, Any]] = [
        start,
        {**begin, "index": 0, "content_block": {"type": "text", "text": ""}},
        {**gain, "index": 0, "delta": {"type": "text_delta", "text": "Thr"}},
        {**gain, "index": 0, "delta": {"type": "text_delta", "text": "ee."}},
        {**begin, "index": 1, "content_block": {**TOOL, "input": {}}},
        {**gain, "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
        {**gain, "index": 1, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": COUNTED_USAGE},
        {"type": "message_stop"},
    ]
    for reading in (read_call(MESSAGES, asked, MESSAGE), read_events(MESSAGES, asked, *events)):
        assert list_data(reading) == [b"system: Count.\n\nuser: ?"]
        (element,) = orjson.loads(reading.inferences[0].response or b"")["outputs"][0]["data"]
        assert (element["generated_text"], element["tool_calls"]) == ("Three.", [CALL])
        expected = {**TOKENS, "cached_tokens": 4, "finish_reason": "tool_use"}
        assert reading.standard.items() >= expected.items()
        assert (reading.model, reading.response_id, reading.problem) == ("claude", "msg-1", None)
    source = {"type": "base64", "media_type": "image/png", "data": CODED}
    turn = {"role": "user", "content": [{"type": "image", "source": source}]}
    assert list_data(read_call(MESSAGES, {"messages": [turn]}, MESSAGE)) == [PIXEL]
    overloaded = {"type": "error", "error": {"message": "Overloaded"}}
    failed = read_events(MESSAGES, asked, start, overloaded)
    assert failed.error == "Overloaded"


def test_an_embedding_is_an_inference_of_each_input() -> None:
    vectors = [{"index": at, "embedding": [0.5, at]} for at in range(2)]
    reading = read_call("/v1/embeddings", {"input": ["a", "b"]}, {"data": vectors, "model": "ada"})
    assert (list_data(reading), reading.model, reading.task_type) == ([b"a", b"b"], "ada", None)
    outputs = [orjson.loads(item.response or b"")["outputs"][0] for item in reading.inferences]
    assert [output["data"] for output in outputs] == [[[0.5, 0]], [[0.5, 1]]]


def test_the_paths_of_servers() -> None:
    split = {"dataframe_split": {"data": [[1]]}}
    for request, answer, data in (
        (split, {"predictions": [1]}, [orjson.dumps(split)]),
        ({"instances": [1, 2]}, {"predictions": [1, 2]}, [b"1", b"2"]),
        ({"messages": [{"role": "user", "content": "?"}]}, {"choices": []}, [b"?"]),
    ):
        assert list_data(read_call("/invocations", request, answer)) == data
    sample = make_exchange("/predictions/resnet/2", PIXEL, b'{"cat": 0.5}', sent=())
    sample.method = "PUT"
    assert [(it.data, it.response) for it in read(sample).inferences] == [(PIXEL, b'{"cat": 0.5}')]
