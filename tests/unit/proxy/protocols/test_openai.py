"""OpenAI's chat and completions: text in, text out, at once and streamed."""

import gzip
from base64 import b64encode
from typing import Any

import orjson
import pytest

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols import recognise_call

from .exchanged import list_predictions, make_exchange, read, read_envelope

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
PIXEL = b"\x89PNG\r\n\x1a\n pixel"
IMAGE = {
    "type": "image_url",
    "image_url": {"url": f"data:image/png;base64,{b64encode(PIXEL).decode()}"},
}


def make_chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "llama", "messages": list(messages), **more}


def make_answer(*texts: str | None, **more: Any) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        for index, text in enumerate(texts)
    ]
    return {"id": "chatcmpl-1", "model": "llama", "choices": choices, "usage": USAGE, **more}


def make_streamed_exchange(
    path: str, request: Any, *chunks: Any, end: bytes = b"data: [DONE]\n\n"
) -> Exchange:
    lines = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks)
    answered = [("content-type", "text/event-stream; charset=utf-8")]
    return make_exchange(path, request, lines + end, answered=answered)


USER = {"role": "user", "content": "How many cats?"}


@pytest.mark.parametrize(
    ("method", "path", "is_recognised"),
    [
        ("POST", "/v1/chat/completions", True),
        ("POST", "/openai/v1/chat/completions", True),
        ("POST", "/openai/v1/completions/", True),
        ("GET", "/v1/chat/completions", False),
        ("POST", "/v1/embeddings", False),
        ("GET", "/v1/models", False),
    ],
)
def test_recognises_its_calls(method: str, path: str, is_recognised: bool) -> None:
    assert (recognise_call(["openai"], "rest", method, path) is not None) is is_recognised


def test_a_single_message_is_the_datum_and_the_answer_a_generated_text() -> None:
    reading = read(make_exchange(CHAT, make_chat(USER), make_answer("Three.")))
    (inference,) = reading.inferences
    assert (inference.data, inference.data_content_type) == (
        b"How many cats?",
        "text/plain; charset=utf-8",
    )
    (row,) = list_predictions(inference.response, reading.task_type)
    assert row.text == "Three."
    assert reading.task_type == "text_generation"
    assert (reading.model, reading.response_id, reading.action) == ("llama", "chatcmpl-1", "chat")
    assert reading.standard == {"stream": False, "finish_reason": "stop", **USAGE}
    assert (reading.ok, reading.error, reading.problem) == (None, None, None)


def test_labels_messages_with_their_roles() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "Be short."}]}
    reading = read(make_exchange(CHAT, make_chat(system, USER), make_answer("3")))
    assert reading.inferences[0].data == b"system: Be short.\n\nuser: How many cats?"


def test_the_only_image_is_the_datum_and_the_answer_is_to_the_prompt() -> None:
    turn = {"role": "user", "content": [{"type": "text", "text": "How many?"}, IMAGE]}
    reading = read(make_exchange(CHAT, make_chat(turn), make_answer("Two.")))
    (inference,) = reading.inferences
    assert (inference.data, inference.data_content_type) == (PIXEL, "image/png")
    assert reading.task_type == "image_text_to_text"
    (row,) = list_predictions(inference.response, reading.task_type)
    assert row.answer == "Two."
    assert b"How many?" not in (inference.response or b"")
    assert reading.standard["prompts"] == ["How many?\n[image]"]


def test_a_configured_task_type_decides_how_the_answer_is_written() -> None:
    turn = {"role": "user", "content": [IMAGE]}
    sample = make_exchange(CHAT, make_chat(turn), make_answer("Two."))
    reading = read(sample, task_type="Text Generation")
    assert list_predictions(reading.inferences[0].response, "text_generation")[0].text == "Two."


def test_the_messages_are_the_datum_if_there_are_several_images() -> None:
    far = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    turn = {"role": "user", "content": [IMAGE, IMAGE, far]}
    reading = read(make_exchange(CHAT, make_chat(turn), make_answer("Two.")))
    assert orjson.loads(reading.inferences[0].data or b"") == [turn]
    assert reading.inferences[0].data_content_type == "application/json"
    assert reading.task_type == "text_generation"


def test_a_sound_is_a_datum_as_well() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    reading = read(
        make_exchange(CHAT, make_chat({"role": "user", "content": [sound]}), make_answer("Hello."))
    )
    assert reading.inferences[0].data == b"RIFF"
    assert reading.inferences[0].data_content_type == "audio/wav"
    assert reading.task_type == "text_generation"


def test_reports_an_image_that_is_not_base64_and_keeps_the_text() -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}
    reading = read(
        make_exchange(CHAT, make_chat({"role": "user", "content": [broken]}), make_answer("?"))
    )
    assert reading.inferences[0].data == b"[image]"
    assert "messages[0].content[0].image_url is not base64" in (reading.problem or "")


def test_calls_of_tools_are_kept() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"a":1}'}}
    answer = make_answer(None)
    answer["choices"][0] = {
        "index": 0,
        "message": {"role": "assistant", "content": None, "tool_calls": [call]},
        "finish_reason": "tool_calls",
    }
    reading = read(make_exchange(CHAT, make_chat(USER), answer))
    document = orjson.loads(reading.inferences[0].response or b"")
    assert document["outputs"][0]["data"][0]["tool_calls"] == [call]
    assert document["answer"] == answer
    assert reading.standard["finish_reason"] == "tool_calls"
    again = make_chat(USER, answer["choices"][0]["message"], {"role": "tool", "content": "sun"})
    datum = read(make_exchange(CHAT, again, make_answer("Sun."))).inferences[0].data
    assert datum == b'user: How many cats?\n\nassistant: w({"a":1})\n\ntool: sun'


def test_several_choices_are_predictions_in_the_order_of_their_indexes() -> None:
    answer = make_answer("a", "b")
    answer["choices"].reverse()
    answer["choices"][0]["finish_reason"] = "length"
    reading = read(make_exchange(CHAT, make_chat(USER), answer))
    assert [
        row.text for row in list_predictions(reading.inferences[0].response, "text_generation")
    ] == [
        "a",
        "b",
    ]
    assert reading.standard["finish_reason"] == ["stop", "length"]


def test_a_list_of_prompts_is_an_inference_each() -> None:
    choices = [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate("abcd")]
    sample = make_exchange(
        COMPLETIONS, {"model": "m", "prompt": ["x", "y"], "n": 2}, {"choices": choices}
    )
    reading = read(sample)
    assert [inference.data for inference in reading.inferences] == [b"x", b"y"]
    texts = [
        list_predictions(inference.response, reading.task_type) for inference in reading.inferences
    ]
    assert [[row.text for row in rows] for rows in texts] == [["a", "b"], ["c", "d"]]
    assert reading.action == "completion"


def test_answers_that_do_not_match_the_prompts_make_one_inference() -> None:
    choices = [{"index": 0, "text": "a", "finish_reason": "stop"}]
    reading = read(make_exchange(COMPLETIONS, {"prompt": ["x", "y"]}, {"choices": choices}))
    (inference,) = reading.inferences
    assert (inference.data, inference.data_content_type) == (b'["x","y"]', "application/json")


@pytest.mark.parametrize("prompt", ["once upon", ["once upon"]])
def test_a_single_prompt_is_its_text(prompt: Any) -> None:
    answer = {"choices": [{"text": " a time"}]}
    (inference,) = read(make_exchange(COMPLETIONS, {"prompt": prompt}, answer)).inferences
    assert inference.data == b"once upon"


def test_a_prompt_of_tokens_is_kept_as_json() -> None:
    sample = make_exchange(COMPLETIONS, {"prompt": [1, 2, 3]}, {"choices": [{"text": "x"}]})
    assert read(sample).inferences[0].data == b"[1,2,3]"


def test_a_stream_is_joined_and_its_chunks_kept_in_order() -> None:
    head = {"id": "c-1", "model": "llama-3"}
    chunks = [
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {**head, "choices": [{"index": 0, "delta": {"content": "Thr"}}]},
        {**head, "choices": [{"index": 1, "delta": {"content": "Four"}}]},
        {**head, "choices": [{"index": 0, "delta": {"content": "ee"}, "finish_reason": "stop"}]},
        {**head, "choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]},
        {**head, "choices": [], "usage": USAGE},
    ]
    reading = read(make_streamed_exchange(CHAT, make_chat(USER, stream=True), *chunks))
    (inference,) = reading.inferences
    assert [row.text for row in list_predictions(inference.response, reading.task_type)] == [
        "Three",
        "Four",
    ]
    assert orjson.loads(inference.response or b"")["chunks"] == chunks
    assert reading.standard == {"stream": True, "finish_reason": "stop", **USAGE}
    assert (reading.response_id, reading.problem) == ("c-1", None)


def test_a_streamed_call_of_a_tool_is_joined() -> None:
    def part(**call: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **call}]}}]}

    sample = make_streamed_exchange(
        CHAT,
        make_chat(USER, stream=True),
        part(id="c1", type="function", function={"name": "weather", "arguments": ""}),
        part(function={"arguments": '{"city":'}),
        part(function={"arguments": '"Bern"}'}),
    )
    document = orjson.loads(read(sample).inferences[0].response or b"")
    assert document["outputs"][0]["data"][0]["tool_calls"] == [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
        }
    ]


def test_streamed_completions_are_joined() -> None:
    sample = make_streamed_exchange(
        COMPLETIONS,
        {"prompt": "x", "stream": True},
        {"choices": [{"index": 0, "text": "a"}]},
        {"choices": [{"index": 0, "text": "b", "finish_reason": "length"}]},
    )
    reading = read(sample)
    assert list_predictions(reading.inferences[0].response, reading.task_type)[0].text == "ab"


def test_a_stream_that_breaks_off_is_read_as_far_as_it_came() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "Th"}}]}
    reading = read(
        make_streamed_exchange(CHAT, make_chat(USER, stream=True), chunk, end=b'data: {"choi')
    )
    assert list_predictions(reading.inferences[0].response, reading.task_type)[0].text == "Th"
    assert "chunk 1 is not JSON" in (reading.problem or "")
    assert "broke off after" in (reading.problem or "")


@pytest.mark.parametrize(("raw", "response"), [(b"", None), (b"nonsense", b'{"body":"nonsense"}')])
def test_a_stream_without_a_chunk_is_no_answer(raw: bytes, response: bytes | None) -> None:
    reading = read(make_streamed_exchange(CHAT, make_chat(USER, stream=True), end=raw))
    assert reading.inferences[0].response == response
    assert reading.problem == "the stream broke off after 0 chunks"


def test_an_error_inside_a_stream_is_a_failure() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "Th"}}]}
    sample = make_streamed_exchange(
        CHAT, make_chat(USER, stream=True), chunk, {"error": {"message": "out of memory"}}
    )
    reading = read(sample)
    assert (reading.ok, reading.error) == (False, "out of memory")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"error": {"message": "no such model", "code": 404}}, "no such model"),
        ({"object": "error", "message": "too long", "code": 400}, "too long"),
        ({"detail": "Not Found"}, "Not Found"),
        (b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
    ],
)
def test_the_error_text_is_found(answer: Any, error: str) -> None:
    reading = read(make_exchange(CHAT, make_chat(USER), answer, status=400))
    assert (reading.ok, reading.error) == (None, error)
    assert reading.inferences[0].data == b"How many cats?"
    assert reading.inferences[0].response is not None


def test_openais_own_metadata_is_an_envelope() -> None:
    request = make_chat(USER, metadata={"camera": "hallway", "frame": "7"})
    reading = read(make_exchange(CHAT, request, make_answer("3")))
    assert read_envelope(reading.inferences[0].metadata) == {"camera": "hallway", "frame": "7"}


def test_compressed_bodies_are_read() -> None:
    packed = [("content-type", "application/json"), ("content-encoding", "gzip")]
    request, answer = orjson.dumps(make_chat(USER)), orjson.dumps(make_answer("3"))
    sample = make_exchange(
        CHAT, gzip.compress(request), gzip.compress(answer), sent=packed, answered=packed
    )
    reading = read(sample)
    assert reading.problem is None
    assert list_predictions(reading.inferences[0].response, reading.task_type)[0].text == "3"


@pytest.mark.parametrize("raw", [b"{", b"[]", b"", b'{"model": "m"}', b'{"messages": 3}'])
def test_a_request_that_cannot_be_read_is_kept_whole(raw: bytes) -> None:
    reading = read(make_exchange(CHAT, raw, make_answer("3")))
    assert reading.inferences[0].data == raw
    assert reading.problem


def test_a_request_in_part_is_kept_as_far_as_it_is_there() -> None:
    sample = make_exchange(CHAT, b'{"messages": [', make_answer("3"))
    sample.request.whole, sample.request.size = False, 9000
    reading = read(sample)
    assert reading.inferences[0].data == b'{"messages": ['
    assert reading.problem == "of the request's 9000 bytes only the first 14 are there"


def test_without_an_answer_there_is_no_response() -> None:
    reading = read(make_exchange(CHAT, make_chat(USER), status=None))
    assert reading.inferences[0].response is None
