"""OpenAI's chat and completions: text in, text out, at once and streamed."""

from base64 import b64encode
from typing import Any

import orjson

from inference_store.proxy.protocols import Reading

from .exchanged import PIXEL, list_data, list_predictions, list_texts, read_call, read_envelope

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TOKENS = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
CACHED, REASONED = {"cached_tokens": 4}, {"reasoning_tokens": 2}
USAGE = TOKENS | {"prompt_tokens_details": CACHED, "completion_tokens_details": REASONED}
COUNTED = TOKENS | CACHED | REASONED
URL = f"data:image/png;base64,{b64encode(PIXEL).decode()}"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
USER = {"role": "user", "content": "How many cats?"}


def make_chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "llama", "messages": list(messages), **more}


def make_turn(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def make_choice(index: int, text: str | None, reason: str = "stop", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **more}
    return {"index": index, "message": message, "finish_reason": reason}


def make_answer(*choices: Any, **more: Any) -> dict[str, Any]:
    listed = [
        choice if isinstance(choice, dict) else make_choice(index, choice)
        for index, choice in enumerate(choices)
    ]
    return {"id": "chatcmpl-1", "model": "llama", "choices": listed, "usage": USAGE, **more}


def make_chunk(index: int, **choice: Any) -> dict[str, Any]:
    return {"id": "c-1", "model": "llama-3", "choices": [{"index": index, **choice}]}


def read_chat(message: Any, answer: Any, **more: Any) -> Reading:
    return read_call(CHAT, make_chat(message), answer, **more)


def read_stream(
    *chunks: Any, path: str = CHAT, request: Any = None, end: bytes = b"data: [DONE]\n\n"
) -> Reading:
    lines = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks)
    answered = [("content-type", "text/event-stream; charset=utf-8")]
    sent = request or make_chat(USER, stream=True)
    return read_call(path, sent, lines + end, answered=answered)


def test_a_single_message_is_the_datum_and_the_answer_a_generated_text() -> None:
    reading = read_chat(USER, make_answer("Three."))
    (inference,) = reading.inferences
    assert inference.data == b"How many cats?"
    assert inference.data_content_type == "text/plain; charset=utf-8"
    assert list_texts(reading) == [["Three."]]
    assert reading.task_type == "text_generation"
    assert (reading.model, reading.response_id, reading.action) == ("llama", "chatcmpl-1", "chat")
    assert reading.standard == {"stream": False, "finish_reason": "stop"} | COUNTED
    assert (reading.error, reading.problem) == (None, None)


def test_the_only_image_is_the_datum_and_the_answer_is_to_the_prompt() -> None:
    turn = make_turn({"type": "text", "text": "How many?"}, IMAGE)
    reading = read_chat(turn, make_answer("Two."))
    (inference,) = reading.inferences
    assert (inference.data, inference.data_content_type) == (PIXEL, "image/png")
    assert reading.task_type == "image_text_to_text"
    (row,) = list_predictions(inference.response, reading.task_type)
    assert row.answer == "Two."
    assert b"How many?" not in (inference.response or b"")
    assert reading.standard["prompts"] == ["How many?\n[image]"]


def test_a_configured_task_type_decides_how_the_answer_is_written() -> None:
    reading = read_chat(make_turn(IMAGE), make_answer("Two."), task_type="Text Generation")
    (row,) = list_predictions(reading.inferences[0].response, "text_generation")
    assert row.text == "Two."


def test_the_messages_are_the_datum_if_there_are_several_images() -> None:
    far = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    turn = make_turn(IMAGE, IMAGE, far)
    reading = read_chat(turn, make_answer("Two."))
    assert orjson.loads(reading.inferences[0].data or b"") == [turn]
    assert reading.inferences[0].data_content_type == "application/json"
    assert reading.task_type == "text_generation"


def test_a_sound_is_a_datum_as_well() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    reading = read_chat(make_turn(sound), make_answer("Hello."))
    (inference,) = reading.inferences
    assert (inference.data, inference.data_content_type) == (b"RIFF", "audio/wav")
    assert reading.task_type == "text_generation"


def test_reports_an_image_that_is_not_base64_and_keeps_the_text() -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}
    reading = read_chat(make_turn(broken), make_answer("?"))
    assert list_data(reading) == [b"[image]"]
    assert "messages[0].content[0].image_url is not base64" in (reading.problem or "")


def test_reports_messages_of_other_kinds() -> None:
    odd: list[tuple[Any, bytes, str | None]] = [
        (7, orjson.dumps(make_chat(7)), "messages[0] is not an object with role and content"),
        ({"role": "user", "content": 7}, b"7", "content is neither text nor a list of parts"),
        (make_turn("a", "b"), b"a\nb", None),
        (make_turn(7), b"7", "messages[0].content[0] is no part with a type"),
        (make_turn({"type": "input_audio", "input_audio": 7}), b"[audio]", None),
        (make_turn({"type": "file", "file": {"file_data": URL}}), PIXEL, None),
    ]
    for message, datum, problem in odd:
        reading = read_chat(message, make_answer("?"))
        assert list_data(reading) == [datum], message
        assert (problem or "") in (reading.problem or ""), message


def test_calls_of_tools_are_kept() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"a":1}'}}
    choice = make_choice(0, None, "tool_calls", tool_calls=[call])
    answer = make_answer(choice)
    reading = read_chat(USER, answer)
    document = orjson.loads(reading.inferences[0].response or b"")
    assert document["outputs"][0]["data"][0]["tool_calls"] == [call]
    assert document["answer"] == answer
    assert reading.standard["finish_reason"] == "tool_calls"
    again = make_chat(USER, choice["message"], {"role": "tool", "content": "sun"})
    datum = b'user: How many cats?\n\nassistant: w({"a":1})\n\ntool: sun'
    assert list_data(read_call(CHAT, again, make_answer("Sun."))) == [datum]


def test_several_choices_are_predictions_in_the_order_of_their_indexes() -> None:
    answer = make_answer(make_choice(1, "b", "length"), make_choice(0, "a"))
    reading = read_chat(USER, answer)
    assert list_texts(reading) == [["a", "b"]]
    assert reading.standard["finish_reason"] == ["stop", "length"]


def test_a_list_of_prompts_is_an_inference_each() -> None:
    choices = [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate("abcd")]
    request = {"model": "m", "prompt": ["x", "y"], "n": 2}
    reading = read_call(COMPLETIONS, request, {"choices": choices})
    assert list_data(reading) == [b"x", b"y"]
    assert list_texts(reading) == [["a", "b"], ["c", "d"]]
    assert reading.action == "completion"


def test_the_datum_of_a_completion() -> None:
    for prompt, datum in (
        ("once upon", b"once upon"),
        (["once upon"], b"once upon"),
        ([1, 2, 3], b"[1,2,3]"),
        (["answers", "that do not match"], b'["answers","that do not match"]'),
    ):
        answer = {"choices": [{"text": " a time"}]}
        assert list_data(read_call(COMPLETIONS, {"prompt": prompt}, answer)) == [datum]


def test_a_stream_is_joined_and_its_chunks_kept_in_order() -> None:
    chunks = [
        make_chunk(0, delta={"role": "assistant", "content": ""}),
        make_chunk(0, delta={"content": "Thr"}),
        make_chunk(1, delta={"content": "Four"}),
        make_chunk(0, delta={"content": "ee"}, finish_reason="stop"),
        make_chunk(1, delta={}, finish_reason="stop"),
        {"id": "c-1", "model": "llama-3", "choices": [], "usage": USAGE},
    ]
    reading = read_stream(*chunks)
    assert list_texts(reading) == [["Three", "Four"]]
    assert orjson.loads(reading.inferences[0].response or b"")["chunks"] == chunks
    expected = {"stream": True, "finish_reason": "stop", "time_to_first_token_ms": 21.5}
    assert reading.standard == expected | COUNTED
    assert (reading.response_id, reading.problem) == ("c-1", None)


def read_element(*chunks: Any) -> dict[str, Any]:
    document = orjson.loads(read_stream(*chunks).inferences[0].response or b"")
    element: dict[str, Any] = document["outputs"][0]["data"][0]
    return element


def test_pieces_are_the_same_two_calls_however_a_server_says_whose_they_are() -> None:
    pieces = [{"name": "w", "arguments": '{"a"'}, {"arguments": ":1}"}, {"name": "v"}]
    expected = [{"name": "w", "arguments": '{"a":1}'}, {"name": "v"}]
    cases: list[tuple[dict[str, Any], ...]] = [
        ({"id": "a"}, {}, {"id": "b"}),
        ({"id": "a", "type": "function"}, {"id": "a"}, {"id": "b"}),
        ({"id": "a", "index": 0}, {"index": 0}, {"id": "b", "index": 1}),
        ({"id": "a", "index": 0}, {"index": 0}, {"id": "b", "index": 0}),
        ({"id": "a", "index": 7}, {"id": "a"}, {"id": "b", "index": 3}),
        ({}, {}, {}),
    ]
    for keys in cases:
        parts = [{**key, "function": piece} for key, piece in zip(keys, pieces, strict=True)]
        element = read_element(*(make_chunk(0, delta={"tool_calls": [part]}) for part in parts))
        assert [call.pop("function") for call in element["tool_calls"]] == expected
        kept = [{name: key[name] for name in key if name != "index"} for key in keys[::2]]
        assert element["tool_calls"] == kept


def test_a_streamed_call_of_a_function_is_joined() -> None:
    parts = [{"name": "w", "arguments": ""}, {"arguments": '{"a":'}, {"arguments": "1}"}]
    element = read_element(*(make_chunk(0, delta={"function_call": part}) for part in parts))
    assert element["function_call"] == {"name": "w", "arguments": '{"a":1}'}
    again = make_chat(USER, {"role": "assistant", **element})
    datum = b'user: How many cats?\n\nassistant: w({"a":1})'
    assert list_data(read_call(CHAT, again, make_answer("Sun."))) == [datum]


def test_streamed_completions_are_joined() -> None:
    chunks = make_chunk(0, text="a"), make_chunk(0, text="b", finish_reason="length")
    request = {"prompt": "x", "stream": True}
    assert list_texts(read_stream(*chunks, path=COMPLETIONS, request=request)) == [["ab"]]


def test_a_stream_that_breaks_off_is_read_as_far_as_it_came() -> None:
    reading = read_stream(make_chunk(0, delta={"content": "Th"}), end=b'data: {"choi')
    assert list_texts(reading) == [["Th"]]
    assert "chunk 1 is not JSON" in (reading.problem or "")
    assert "broke off after" in (reading.problem or "")
    for raw, response in ((b"", None), (b"nonsense", b'{"body":"nonsense"}')):
        reading = read_stream(end=raw)
        assert reading.inferences[0].response == response
        assert reading.problem == "the stream broke off after 0 chunks"


def test_an_error_inside_a_stream_is_a_failure() -> None:
    error = {"error": {"message": "out of memory"}}
    reading = read_stream(make_chunk(0, delta={"content": "Th"}), error)
    assert reading.error == "out of memory"


def test_the_error_text_is_found() -> None:
    answers: list[tuple[Any, str]] = [
        ({"error": {"message": "no such model", "code": 404}}, "no such model"),
        ({"object": "error", "message": "too long", "code": 400}, "too long"),
        ({"detail": "Not Found"}, "Not Found"),
        (b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
    ]
    for answer, error in answers:
        reading = read_chat(USER, answer, status=400)
        assert reading.error == error
        assert list_data(reading) == [b"How many cats?"]
        assert reading.inferences[0].response is not None


def test_openais_own_metadata_is_an_envelope() -> None:
    metadata = {"camera": "hallway", "frame": "7"}
    reading = read_call(CHAT, make_chat(USER, metadata=metadata), make_answer("3"))
    assert read_envelope(reading.inferences[0].metadata) == metadata
