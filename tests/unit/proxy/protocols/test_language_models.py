"""Language models behind other paths than OpenAI's chat: the same datum, text, names and tokens."""

from base64 import b64encode
from typing import Any

import orjson

from inference_store.proxy.protocols import Reading

from .exchanged import PIXEL, list_data, list_texts, make_exchange, read, read_call

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
USAGE = {"input_tokens": 9, "output_tokens": 3}
TOKENS = {"prompt_tokens": 9, "completion_tokens": 3}
TEXT = {"type": "output_text", "text": "Three."}
RESPONSE = {
    "id": "resp-1",
    "model": "gpt",
    "status": "completed",
    "output": [{"type": "reasoning"}, {"type": "message", "content": [TEXT]}],
    "usage": {**USAGE, "output_tokens_details": {"reasoning_tokens": 2}},
}
TOOL = {"type": "tool_use", "id": "t1", "name": "w", "input": {"a": 1}}
CALL = {"id": "t1", "type": "function", "function": {"name": "w", "arguments": '{"a":1}'}}
MESSAGE = {
    "id": "msg-1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "Three."}, TOOL],
    "stop_reason": "tool_use",
    "usage": {**USAGE, "cache_read_input_tokens": 4},
}


def read_events(path: str, request: Any, *parts: Any) -> Reading:
    lines = b"".join(b"event: x\ndata: " + orjson.dumps(part) + b"\n\n" for part in parts)
    return read_call(path, request, lines, answered=[("content-type", "text/event-stream")])


def test_a_response() -> None:
    asked = {"model": "gpt", "instructions": "Count.", "input": "How many?"}
    image = {
        "type": "input_image",
        "image_url": f"data:image/png;base64,{b64encode(PIXEL).decode()}",
    }
    turn = {"role": "user", "content": [{"type": "input_text", "text": "How many?"}]}
    pictured = {"role": "user", "content": [*turn["content"], image]}
    delta = {"type": "response.output_text.delta", "delta": "Three."}
    end = {"type": "response.completed", "response": RESPONSE}
    for reading in (
        read_call(RESPONSES, asked, RESPONSE),
        read_events(RESPONSES, asked, {"type": "response.created", "response": {}}, delta, end),
    ):
        assert (list_data(reading), list_texts(reading)) == ([b"How many?"], [["Three."]])
        assert (reading.model, reading.response_id) == ("gpt", "resp-1")
        assert reading.standard.items() >= (TOKENS | {"reasoning_tokens": 2}).items()
        assert (reading.action, reading.problem) == ("response", None)
    told = read_call(RESPONSES, {**asked, "input": [turn]}, RESPONSE)
    assert list_data(told) == [b"system: Count.\n\nuser: How many?"]
    assert list_data(read_call(RESPONSES, {"input": [pictured]}, RESPONSE)) == [PIXEL]
    broken = read_events(RESPONSES, asked, delta)
    assert list_texts(broken) == [["Three."]]
    assert "broke off" in (broken.problem or "")


def test_a_message() -> None:
    asked = {"model": "claude", "system": "Count.", "messages": [{"role": "user", "content": "?"}]}
    start = {**MESSAGE, "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"index": 0, "content_block": {"type": "text", "text": ""}},
        {"index": 0, "delta": {"type": "text_delta", "text": "Thr"}},
        {"index": 0, "delta": {"type": "text_delta", "text": "ee."}},
        {"index": 1, "content_block": {**TOOL, "input": {}}},
        {"index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
        {"index": 1, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": USAGE},
        {"type": "message_stop"},
    ]
    typed = [
        {"type": f"content_block_{'start' if 'content_block' in event else 'delta'}"} | event
        for event in events
    ]
    for reading in (read_call(MESSAGES, asked, MESSAGE), read_events(MESSAGES, asked, *typed)):
        assert (list_data(reading), list_texts(reading)) == (
            [b"system: Count.\n\nuser: ?"],
            [["Three."]],
        )
        document = orjson.loads(reading.inferences[0].response or b"")
        assert document["outputs"][0]["data"][0]["tool_calls"] == [CALL]
        expected = {**TOKENS, "cached_tokens": 4, "finish_reason": "tool_use"}
        assert reading.standard.items() >= expected.items()
        assert (reading.model, reading.response_id, reading.problem) == ("claude", "msg-1", None)
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(PIXEL).decode()}
    turn = {"role": "user", "content": [{"type": "image", "source": source}]}
    assert list_data(read_call(MESSAGES, {"messages": [turn]}, MESSAGE)) == [PIXEL]
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    failed = read_events(MESSAGES, asked, typed[0], overloaded)
    assert (failed.ok, failed.error) == (False, "Overloaded")


def test_an_embedding_is_an_inference_of_each_input() -> None:
    vectors = [{"index": at, "embedding": [0.5, at]} for at in range(2)]
    answer = {"data": vectors, "model": "ada", "usage": {"prompt_tokens": 9}}
    reading = read_call("/v1/embeddings", {"input": ["a", "b"]}, answer)
    assert list_data(reading) == [b"a", b"b"]
    outputs = [orjson.loads(item.response or b"")["outputs"][0] for item in reading.inferences]
    assert [output["data"] for output in outputs] == [[[0.5, 0]], [[0.5, 1]]]
    assert (reading.model, reading.task_type) == ("ada", None)
    alone = {**answer, "data": vectors[:1]}
    (inference,) = read_call("/v1/embeddings", {"input": "a"}, alone).inferences
    assert inference.response == orjson.dumps(alone)


def test_the_paths_of_servers() -> None:
    split = {"dataframe_split": {"data": [[1]]}}
    for request, answer, data in (
        (split, {"predictions": [1]}, [orjson.dumps(split)]),
        ({"instances": [1, 2]}, {"predictions": [1, 2]}, [b"1", b"2"]),
        ({"messages": [{"role": "user", "content": "?"}]}, {"choices": []}, [b"?"]),
        (b"a,b\n1,2\n", [1], [b"a,b\n1,2\n"]),
    ):
        reading = read_call("/invocations", request, answer)
        assert (list_data(reading), reading.action) == (data, "invocations")
    sample = make_exchange("/predictions/resnet/2", PIXEL, b'{"cat": 0.5}', sent=())
    sample.method = "PUT"
    (inference,) = read(sample).inferences
    assert (inference.data, inference.response) == (PIXEL, b'{"cat": 0.5}')
