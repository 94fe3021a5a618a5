"""OpenAI's chat and completions: text in, text out, at once and streamed."""

import gzip
from base64 import b64encode
from typing import Any

import orjson
import pytest

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols import recognised

from .exchanged import exchange, metadata, predictions, read

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
PIXEL = b"\x89PNG\r\n\x1a\n pixel"
IMAGE = {
    "type": "image_url",
    "image_url": {"url": f"data:image/png;base64,{b64encode(PIXEL).decode()}"},
}


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "llama", "messages": list(messages), **more}


def said(*texts: str | None, **more: Any) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        for index, text in enumerate(texts)
    ]
    return {"id": "chatcmpl-1", "model": "llama", "choices": choices, "usage": USAGE, **more}


def streamed(path: str, request: Any, *chunks: Any, end: bytes = b"data: [DONE]\n\n") -> Exchange:
    lines = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks)
    answered = [("content-type", "text/event-stream; charset=utf-8")]
    return exchange(path, request, lines + end, answered=answered)


USER = {"role": "user", "content": "How many cats?"}


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("POST", "/v1/chat/completions", True),
        ("POST", "/openai/v1/chat/completions", True),
        ("POST", "/openai/v1/completions/", True),
        ("GET", "/v1/chat/completions", False),
        ("POST", "/v1/embeddings", False),
        ("GET", "/v1/models", False),
    ],
)
def test_which_calls_are_its_own(method: str, path: str, known: bool) -> None:
    assert (recognised(["openai"], "rest", method, path) is not None) is known


def test_one_message_is_the_datum_and_the_answer_a_generated_text() -> None:
    found = read(exchange(CHAT, chat(USER), said("Three.")))
    (inference,) = found.inferences
    assert (inference.data, inference.data_content_type) == (
        b"How many cats?",
        "text/plain; charset=utf-8",
    )
    (row,) = predictions(inference.response, found.task_type)
    assert row.text == "Three."
    assert found.task_type == "text_generation"
    assert (found.model, found.response_id, found.action) == ("llama", "chatcmpl-1", "chat")
    assert found.standard == {"stream": False, "finish_reason": "stop", **USAGE}
    assert (found.ok, found.error, found.problem) == (None, None, None)


def test_several_messages_are_told_apart_by_their_roles() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "Be short."}]}
    found = read(exchange(CHAT, chat(system, USER), said("3")))
    assert found.inferences[0].data == b"system: Be short.\n\nuser: How many cats?"


def test_the_only_image_is_the_datum_and_the_answer_is_to_the_prompt() -> None:
    asked = {"role": "user", "content": [{"type": "text", "text": "How many?"}, IMAGE]}
    found = read(exchange(CHAT, chat(asked), said("Two.")))
    (inference,) = found.inferences
    assert (inference.data, inference.data_content_type) == (PIXEL, "image/png")
    assert found.task_type == "image_text_to_text"
    (row,) = predictions(inference.response, found.task_type)
    assert row.answer == "Two."
    assert b"How many?" not in (inference.response or b"")
    assert found.standard["prompts"] == ["How many?\n[image]"]


def test_a_configured_task_type_decides_how_the_answer_is_written() -> None:
    asked = {"role": "user", "content": [IMAGE]}
    went = exchange(CHAT, chat(asked), said("Two."))
    found = read(went, task_type="Text Generation")
    assert predictions(found.inferences[0].response, "text_generation")[0].text == "Two."


def test_of_several_images_the_messages_are_the_datum() -> None:
    far = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    asked = {"role": "user", "content": [IMAGE, IMAGE, far]}
    found = read(exchange(CHAT, chat(asked), said("Two.")))
    assert orjson.loads(found.inferences[0].data or b"") == [asked]
    assert found.inferences[0].data_content_type == "application/json"
    assert found.task_type == "text_generation"


def test_a_sound_is_a_datum_as_well() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    found = read(exchange(CHAT, chat({"role": "user", "content": [sound]}), said("Hello.")))
    assert found.inferences[0].data == b"RIFF"
    assert found.inferences[0].data_content_type == "audio/wav"
    assert found.task_type == "text_generation"


def test_an_image_that_is_not_base64_is_said_and_the_text_kept() -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}
    found = read(exchange(CHAT, chat({"role": "user", "content": [broken]}), said("?")))
    assert found.inferences[0].data == b"[image]"
    assert "messages[0].content[0].image_url is not base64" in (found.problem or "")


def test_calls_of_tools_are_kept() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"a":1}'}}
    answer = said(None)
    answer["choices"][0] = {
        "index": 0,
        "message": {"role": "assistant", "content": None, "tool_calls": [call]},
        "finish_reason": "tool_calls",
    }
    found = read(exchange(CHAT, chat(USER), answer))
    document = orjson.loads(found.inferences[0].response or b"")
    assert document["outputs"][0]["data"][0]["tool_calls"] == [call]
    assert document["answer"] == answer
    assert found.standard["finish_reason"] == "tool_calls"
    again = chat(USER, answer["choices"][0]["message"], {"role": "tool", "content": "sun"})
    told = read(exchange(CHAT, again, said("Sun."))).inferences[0].data
    assert told == b'user: How many cats?\n\nassistant: w({"a":1})\n\ntool: sun'


def test_several_choices_are_predictions_in_the_order_of_their_indexes() -> None:
    answer = said("a", "b")
    answer["choices"].reverse()
    answer["choices"][0]["finish_reason"] = "length"
    found = read(exchange(CHAT, chat(USER), answer))
    assert [row.text for row in predictions(found.inferences[0].response, "text_generation")] == [
        "a",
        "b",
    ]
    assert found.standard["finish_reason"] == ["stop", "length"]


def test_a_list_of_prompts_is_an_inference_each() -> None:
    choices = [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate("abcd")]
    went = exchange(COMPLETIONS, {"model": "m", "prompt": ["x", "y"], "n": 2}, {"choices": choices})
    found = read(went)
    assert [each.data for each in found.inferences] == [b"x", b"y"]
    texts = [predictions(each.response, found.task_type) for each in found.inferences]
    assert [[row.text for row in rows] for rows in texts] == [["a", "b"], ["c", "d"]]
    assert found.action == "completion"


def test_answers_that_do_not_match_the_prompts_make_one_inference() -> None:
    choices = [{"index": 0, "text": "a", "finish_reason": "stop"}]
    found = read(exchange(COMPLETIONS, {"prompt": ["x", "y"]}, {"choices": choices}))
    (inference,) = found.inferences
    assert (inference.data, inference.data_content_type) == (b'["x","y"]', "application/json")


@pytest.mark.parametrize("prompt", ["once upon", ["once upon"]])
def test_one_prompt_is_its_text(prompt: Any) -> None:
    answer = {"choices": [{"text": " a time"}]}
    (inference,) = read(exchange(COMPLETIONS, {"prompt": prompt}, answer)).inferences
    assert inference.data == b"once upon"


def test_a_prompt_of_tokens_is_kept_as_json() -> None:
    went = exchange(COMPLETIONS, {"prompt": [1, 2, 3]}, {"choices": [{"text": "x"}]})
    assert read(went).inferences[0].data == b"[1,2,3]"


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
    found = read(streamed(CHAT, chat(USER, stream=True), *chunks))
    (inference,) = found.inferences
    assert [row.text for row in predictions(inference.response, found.task_type)] == [
        "Three",
        "Four",
    ]
    assert orjson.loads(inference.response or b"")["chunks"] == chunks
    assert found.standard == {"stream": True, "finish_reason": "stop", **USAGE}
    assert (found.response_id, found.problem) == ("c-1", None)


def test_a_streamed_call_of_a_tool_is_joined() -> None:
    def part(**call: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **call}]}}]}

    went = streamed(
        CHAT,
        chat(USER, stream=True),
        part(id="c1", type="function", function={"name": "weather", "arguments": ""}),
        part(function={"arguments": '{"city":'}),
        part(function={"arguments": '"Bern"}'}),
    )
    document = orjson.loads(read(went).inferences[0].response or b"")
    assert document["outputs"][0]["data"][0]["tool_calls"] == [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
        }
    ]


def test_streamed_completions_are_joined() -> None:
    went = streamed(
        COMPLETIONS,
        {"prompt": "x", "stream": True},
        {"choices": [{"index": 0, "text": "a"}]},
        {"choices": [{"index": 0, "text": "b", "finish_reason": "length"}]},
    )
    found = read(went)
    assert predictions(found.inferences[0].response, found.task_type)[0].text == "ab"


def test_a_stream_that_breaks_off_is_read_as_far_as_it_came() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "Th"}}]}
    found = read(streamed(CHAT, chat(USER, stream=True), chunk, end=b'data: {"choi'))
    assert predictions(found.inferences[0].response, found.task_type)[0].text == "Th"
    assert "chunk 1 is not JSON" in (found.problem or "")
    assert "broke off after" in (found.problem or "")


@pytest.mark.parametrize(("raw", "response"), [(b"", None), (b"nonsense", b'{"body":"nonsense"}')])
def test_a_stream_without_a_chunk_is_no_answer(raw: bytes, response: bytes | None) -> None:
    found = read(streamed(CHAT, chat(USER, stream=True), end=raw))
    assert found.inferences[0].response == response
    assert found.problem == "the stream broke off after 0 chunks"


def test_an_error_inside_a_stream_is_a_failure() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "Th"}}]}
    went = streamed(CHAT, chat(USER, stream=True), chunk, {"error": {"message": "out of memory"}})
    found = read(went)
    assert (found.ok, found.error) == (False, "out of memory")


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
    found = read(exchange(CHAT, chat(USER), answer, status=400))
    assert (found.ok, found.error) == (None, error)
    assert found.inferences[0].data == b"How many cats?"
    assert found.inferences[0].response is not None


def test_openais_own_metadata_is_an_envelope() -> None:
    asked = chat(USER, metadata={"camera": "hallway", "frame": "7"})
    found = read(exchange(CHAT, asked, said("3")))
    assert metadata(found.inferences[0].metadata) == {"camera": "hallway", "frame": "7"}


def test_compressed_bodies_are_read() -> None:
    packed = [("content-type", "application/json"), ("content-encoding", "gzip")]
    request, answer = orjson.dumps(chat(USER)), orjson.dumps(said("3"))
    went = exchange(
        CHAT, gzip.compress(request), gzip.compress(answer), sent=packed, answered=packed
    )
    found = read(went)
    assert found.problem is None
    assert predictions(found.inferences[0].response, found.task_type)[0].text == "3"


@pytest.mark.parametrize("raw", [b"{", b"[]", b"", b'{"model": "m"}', b'{"messages": 3}'])
def test_a_request_that_cannot_be_read_is_kept_whole(raw: bytes) -> None:
    found = read(exchange(CHAT, raw, said("3")))
    assert found.inferences[0].data == raw
    assert found.problem


def test_a_request_in_part_is_kept_as_far_as_it_is_there() -> None:
    went = exchange(CHAT, b'{"messages": [', said("3"))
    went.request.whole, went.request.size = False, 9000
    found = read(went)
    assert found.inferences[0].data == b'{"messages": ['
    assert found.problem == "of the request's 9000 bytes only the first 14 are there"


def test_without_an_answer_there_is_no_response() -> None:
    found = read(exchange(CHAT, chat(USER), status=None))
    assert found.inferences[0].response is None
