"""Language models: OpenAI's chat, completions, responses and embeddings, as OpenAI, Azure, vLLM,
KServe and many others serve them, and Anthropic's messages.

Text in, text out. The datum of a chat is the text of its messages; if the chat has one image or
sound, that is the datum. The answer is `{"generated_text", "index", "finish_reason", …}` for each
choice.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from inference_store.inference.json_text import Json, cut_items, cut_members, write_json
from inference_store.inference.task_types import task_type_of
from inference_store.proxy.exchange import Exchange, from_base64, from_data_url

from . import documents, protocol
from .documents import JSON, Document, as_object, data_of, list_objects, read_both, write_answer
from .openai_answers import VECTOR, JoinedStream, list_choices, read_usage, text_of_parts
from .protocol import Call, Inference, Model, Problem, Protocol, Reading, join_problems

_Datum: TypeAlias = tuple[bytes, str | None]
"""Bytes, of an image, a sound or a file inside a message too, and their content type."""


class _Conversation:
    """The messages in the member `name` of a request, after what the system is told."""

    def __init__(self, request: dict[str, Json], name: str) -> None:
        # The role and the text of each message; other parts appear in the text as `[image]`.
        self.turns: list[tuple[str, str]] = []
        self.attachments: list[_Datum] = []
        self.problems: list[Problem] = []
        messages, system = request[name], request.get("system", request.get("instructions"))
        if not isinstance(messages, list):
            self._add_problem(f"`{name}` is not a list of {{role, content}}")
            return
        if system:
            self.turns.append(("system", "\n".join(self._read_content(system, "system"))))
        for index, message in enumerate(messages):
            location = f"{name}[{index}]"
            if not isinstance(message, dict):
                self._add_problem(f"{location} is not an object with role and content")
                continue
            content = message.get("content", message.get("output"))
            texts = self._read_content(content, f"{location}.content")
            texts += _format_tool_calls(message)
            self.turns.append((_text(message.get("role")) or "unknown", "\n".join(texts)))

    def _add_problem(self, sentence: str) -> None:
        self.problems.append(Problem.unreadable(sentence))

    def _read_content(self, content: Json, location: str) -> list[str]:
        if isinstance(content, list):
            return [self._read_part(part, f"{location}[{at}]") for at, part in enumerate(content)]
        if content is None or type(content) is str:
            return [] if content is None else [content]
        self._add_problem(f"{location} is neither text nor a list of parts")
        return [write_json(content)]

    def _read_part(self, part: Json, location: str) -> str:
        if not isinstance(part, dict):
            if type(part) is not str:
                self._add_problem(f"{location} is no part with a type")
            return part if type(part) is str else write_json(part)
        texts = [part[name] for name in ("text", "thinking") if type(part.get(name)) is str]
        if texts:
            return str(texts[0])
        if part.get("type") == "tool_use":
            return _format_call(part.get("name"), part.get("input"))
        if part.get("type") == "tool_result":
            return text_of_parts(part.get("content")) or ""
        return self._read_attachment(part, location)

    def _read_attachment(self, part: dict[str, Json], location: str) -> str:
        """Add an attachment; return the text that replaces it. Its bytes stay in the request."""
        kind = part.get("type")
        name = kind if type(kind) is str else "part"
        attachment, address = _find_attachment(name, part)
        if attachment is not None:
            self.attachments.append(attachment)
        elif address is not None and address[:5].lower() == "data:":
            self._add_problem(f"{location}.{name} is not base64 behind `data:…;base64,`")
        elif address is not None:
            return f"[{name.removesuffix('_url')} {address}]"
        return f"[{name.removesuffix('_url').removeprefix('input_')}]"


def _format_tool_calls(message: dict[str, Json]) -> list[str]:
    functions = [call.get("function") for call in list_objects(message.get("tool_calls"))]
    is_call = message.get("type") == "function_call"
    calls = list_objects([*functions, message if is_call else message.get("function_call")])
    return [_format_call(call.get("name"), call.get("arguments") or "") for call in calls]


def _format_call(*named: Json) -> str:
    name, arguments = (it if isinstance(it, str) else write_json(it) for it in named)
    return f"{name}({arguments})"


def _find_attachment(name: str, part: dict[str, Json]) -> tuple[_Datum | None, str | None]:
    """Return the bytes in a part, and their address: in the member of the part's type, in the part
    itself (OpenAI's responses), or in its `source` (Anthropic)."""
    inside, url = part.get(name), part.get("image_url")
    holders = (it for it in (inside, part.get("source"), url) if isinstance(it, dict))
    holder = next(holders, part)
    found = (url, inside if name.endswith("_url") else None, holder.get("url"))
    address = next((it for it in (*found, holder.get("file_data")) if type(it) is str), None)
    if address is not None:
        return from_data_url(address), address
    data, kind = holder.get("data"), holder.get("media_type")
    if kind is None and type(holder.get("format")) is str:
        kind = f"audio/{holder['format']}"
    raw = from_base64(data) if type(data) is str else None
    return (None if raw is None else (raw, kind if type(kind) is str else None)), None


class _Request(NamedTuple):
    data: Sequence[_Datum]
    """At least one; several only for a list of prompts."""
    problem: Problem | None = None
    together: Sequence[_Datum] = ()
    """Several data as one datum."""
    prompt: str | None = None
    """The user's last message, if the datum is an image, a sound or a file in the messages."""


def _parse_request(request: Document, name: str | None) -> _Request:
    """Parse a request, whose data are in the member `name`; an unreadable one is one datum."""
    if not isinstance(request.value, dict):
        sentence = "the request is not a JSON object with messages or a prompt"
        return _Request([(request.raw, None)], request.problem or Problem.no_input(sentence))
    if name is None:
        sentence = "the request has neither `messages` nor a `prompt` nor an `input`"
        return _Request([(request.raw, JSON)], Problem.no_input(sentence))
    if name == "messages" or (name == "input" and list_objects(request.value[name])):
        return _parse_chat(request, name)
    return _parse_completion(request.value[name], cut_members(request.text)[name])


def _parse_chat(request: Document, name: str) -> _Request:
    """Parse the text of a message; of several, each after its role, a blank line between them."""
    chat = _Conversation(request.members, name)
    problem = join_problems(chat.problems, most=3)
    if len(chat.attachments) == 1:
        asked = next((text for role, text in reversed(chat.turns) if role == "user"), None)
        return _Request(chat.attachments, problem, prompt=asked)
    if chat.attachments:
        return _Request([(cut_members(request.text)[name], JSON)], problem)
    if not chat.turns:
        return _Request([(request.raw, JSON)], problem or Problem.no_input(f"`{name}` is empty"))
    turns = [text if len(chat.turns) == 1 else f"{role}: {text}" for role, text in chat.turns]
    return _Request([data_of("\n\n".join(turns))], problem)


def _parse_completion(prompt: Json, text: bytes) -> _Request:
    if isinstance(prompt, list) and len(prompt) == 1 and type(prompt[0]) in (str, list):
        (text,), (prompt,) = cut_items(text), prompt
    together = [data_of(prompt, text)]
    if isinstance(prompt, list) and prompt and all(type(item) in (str, list) for item in prompt):
        return _Request(list(map(data_of, prompt, cut_items(text))), together=together)
    return _Request(together)


def _parse_answer(exchange: Exchange, answer: Document) -> tuple[Document, dict[str, Json]]:
    """Return the answer, of a stream its joined chunks; and it unchanged, by its name in V2."""
    if not documents.is_event_stream(exchange.response_headers, answer.raw):
        answer = answer.as_json()
        return answer, {"answer": answer.value}
    stream = JoinedStream(answer.raw)
    problem = join_problems([answer.problem, *stream.problems], most=3)
    return replace(answer, value=stream.document, problem=problem), {"chunks": stream.chunks}


def _build_envelope(metadata: Json) -> list[bytes]:
    """Return OpenAI's own `{"key": "value", …}` as an envelope; a list stays unchanged."""
    if not isinstance(metadata, list):
        metadata = [
            {"key": key, "type": "string" if type(value) is str else "json", "value": value}
            for key, value in as_object(metadata).items()
        ]
    return [documents.written(metadata)] if metadata else []


def _text(value: Json) -> str | None:
    return value if type(value) is str and value else None


_IMAGES: Final = "image_text_to_text"
_TEXTS: Final = "text_generation"


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read one inference; one per prompt if there is a list of prompts with answers for each."""
    document, plain = read_both(exchange)
    document, (answer, original) = document.as_json(), _parse_answer(exchange, plain)
    asked = document.members
    name = next((it for it in ("messages", "prompt", "input") if asked.get(it) is not None), None)
    request = _parse_request(document, name)
    is_image = (request.data[0][1] or "").startswith("image/")
    task_type = _IMAGES if is_image else None if call.operation == VECTOR else _TEXTS
    is_about_image = task_type_of(model.task_type or task_type).name == _IMAGES
    # The name of a choice's text. The prompt is not part of an answer: it belongs to the input.
    text = "answer" if is_about_image else "generated_text"
    names = {
        "model_name": _text(asked.get("model")) or _text(answer.members.get("model")),
        "id": _text(answer.members.get("id")),
    }
    envelope = _build_envelope(asked.get("metadata"))
    choices, data = list_choices(answer.members, text), request.data
    if len(data) > 1 and (len(data) > protocol.MOST_INFERENCES or len(choices) % len(data)):
        data = request.together
    size, alone = len(choices) // len(data), len(data) == 1
    parts = [choices[at * size : (at + 1) * size] for at in range(len(data))]
    responses = [_build_response(part, answer, original, names, alone=alone) for part in parts]
    return Reading(
        inferences=[
            Inference(data=datum, data_content_type=kind, response=response, metadata=envelope)
            for (datum, kind), response in zip(data, responses, strict=True)
        ],
        items=name,
        model=names["model_name"],
        response_id=names["id"],
        action=call.operation or "completion",
        task_type=task_type,
        error=answer.find_error(exchange.http_status),
        standard={
            "stream": asked.get("stream") is True,
            **read_usage(answer.members),
            **_read_standard(exchange, request, choices, is_stream="chunks" in original),
        },
        problem=join_problems([request.problem, answer.problem]),
    )


def _build_response(
    choices: Sequence[dict[str, Any]],
    answer: Document,
    original: dict[str, Json],
    names: dict[str, str | None],
    *,
    alone: bool,
) -> bytes | None:
    """Return the choices about one datum; with the whole answer, if it is about this alone."""
    vectors = [choice[VECTOR] for choice in choices if VECTOR in choice]
    if (alone and vectors) or not (choices or original.get("chunks")):
        return answer.answer()
    if vectors:
        return write_answer({VECTOR: vectors}, **names)
    return write_answer({"choices": list(choices)}, **names, **(original if alone else {}))


def _read_standard(
    exchange: Exchange, request: _Request, choices: Sequence[dict[str, Any]], *, is_stream: bool
) -> dict[str, Any]:
    """Return the prompt about an attachment; why the answer ended, one reason if all choices have
    the same, else a list; and the time to the first part of a stream."""
    standard: dict[str, Any] = {}
    if request.prompt:
        standard["prompts"] = [request.prompt]
    reasons = [choice.get("finish_reason") for choice in choices]
    if any(reasons):
        is_same = reasons.count(reasons[0]) == len(reasons)
        standard["finish_reason"] = reasons[0] if is_same else reasons
    if is_stream and exchange.forwarded_at and exchange.first_part_at:
        waited = exchange.first_part_at - exchange.forwarded_at
        standard["time_to_first_token_ms"] = round(waited.total_seconds() * 1000, 3)
    return standard


# Azure's paths name the deployment.
_BASE: Final = r"(?:(?:/openai)?/v1|/openai/deployments/(?P<model>[^/]+))"
OPENAI: Final = Protocol(
    name="openai",
    path=re.compile(rf"{_BASE}/(?:(?P<operation>chat)/)?completions/?"),
    read=read,
)
RESPONSES: Final = Protocol(
    name="openai-responses",
    path=re.compile(r"(?:/openai|(?:/openai)?/v1)/(?P<operation>response)s/?"),
    read=read,
)
EMBEDDINGS: Final = Protocol(
    name="openai-embeddings",
    path=re.compile(rf"{_BASE}/(?P<operation>embedding)s/?"),
    read=read,
)
ANTHROPIC: Final = Protocol(
    name="anthropic",
    path=re.compile(r"(?:/anthropic)?/v1/(?P<operation>message)s/?"),
    read=read,
)
