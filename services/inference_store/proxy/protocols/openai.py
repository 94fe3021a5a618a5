"""Language models: OpenAI's chat, completions, responses and embeddings, as OpenAI, Azure, vLLM,
KServe and many others serve them, and Anthropic's messages.

Text in, text out. The datum of a chat is the text of its messages; if the chat has one image or
sound, that is the datum. The answer is `{"generated_text", "index", "finish_reason", …}` for each
choice.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from inference_store.inference.json_text import Json, Span
from inference_store.inference.task_types import task_type_of
from inference_store.proxy.exchange import Exchange

from .documents import (
    JSON,
    Document,
    answer_json,
    as_json,
    data_at,
    data_of,
    elements,
    find_failure,
    is_event_stream,
    member,
    output,
    read_bytes,
    read_document,
    v2_answer_json,
    written,
)
from .openai_messages import (
    join_chunks,
    read_conversation,
    read_first_token,
    read_usage,
    text_of_parts,
)
from .protocol import (
    MOST_INFERENCES,
    Call,
    Inference,
    Model,
    Problem,
    Protocol,
    Reading,
    join_problems,
    no_input,
)


class Choice(NamedTuple):
    """One choice of an answer."""

    text: str | None
    rest: dict[str, Any]
    """What else it has: `index`, `finish_reason`, `role`, `tool_calls` and so on; without the
    log-probabilities of its tokens, which stay in the answer."""


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """A parsed answer."""

    document: Document
    """The answer's JSON; for a stream, its joined chunks."""
    original: dict[str, Json] = field(repr=False)
    """The unchanged answer: `answer`, or `chunks`."""

    @property
    def members(self) -> dict[str, Json]:
        """The members of the answer's root."""
        return self.document.value if isinstance(self.document.value, dict) else {}


def parse_answer(exchange: Exchange) -> ParsedAnswer:
    """Parse the answer of an exchange, streamed or not."""
    plain = read_bytes(exchange.response, exchange.response_headers, "response")
    if is_event_stream(exchange.response_headers, plain.raw):
        stream = join_chunks(plain)
        problem = join_problems([plain.problem, *stream.problems], most=3)
        whole = Document(raw=plain.raw, value=stream.document, problem=problem)
        return ParsedAnswer(whole, {"chunks": stream.chunks})
    plain = as_json(plain, "response")
    return ParsedAnswer(plain, {"answer": plain.value})


# Finds the choices of an answer: OpenAI's own, embeddings, and those that OpenAI's responses and
# Anthropic's messages are, with their calls of tools in OpenAI's form.


def list_choices(answer: dict[str, Json]) -> list[Choice]:
    """Return the choices, in the order of their indexes if they have any."""
    if isinstance(answer.get("output"), list):
        return [_from_response(answer, _objects(answer["output"]))]
    if isinstance(answer.get("content"), list):
        return [_from_message(answer, _objects(answer["content"]))]
    choices = _objects(answer.get("choices", answer.get("data")))
    if all(type(choice.get("index")) is int for choice in choices):
        choices.sort(key=lambda choice: int(choice["index"]))
    return [_read_choice(choice) for choice in choices]


def _read_choice(choice: dict[str, Json]) -> Choice:
    rest = {name: choice.get(name) for name in ("index", "finish_reason")}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    if _VECTOR in choice:
        rest[_VECTOR] = choice[_VECTOR]
    else:
        rest |= {k: v for k, v in message.items() if k != "content" and v is not None}
    return Choice(text_of_parts(choice.get("text", message.get("content"))), rest)


def _from_response(answer: dict[str, Json], items: list[dict[str, Json]]) -> Choice:
    parts = [part for item in items for part in _objects(item.get("content"))]
    calls = [
        _describe_call(item.get("call_id"), item, item.get("arguments"))
        for item in items
        if item.get("type") == "function_call"
    ]
    incomplete = answer.get("incomplete_details")
    reason = incomplete.get("reason") if isinstance(incomplete, dict) else None
    texts = [part for part in parts if part.get("type") == "output_text"]
    return _build_choice("assistant", reason or answer.get("status"), texts, calls)


def _from_message(answer: dict[str, Json], parts: list[dict[str, Json]]) -> Choice:
    calls = [
        _describe_call(
            part.get("id"), part, part.get("partial_json") or written(part.get("input")).decode()
        )
        for part in parts
        if part.get("type") == "tool_use"
    ]
    return _build_choice(answer.get("role"), answer.get("stop_reason"), parts, calls)


def _build_choice(
    role: Json, reason: Json, content: list[dict[str, Json]], calls: list[dict[str, Any]]
) -> Choice:
    texts = [part for part in content if type(part.get("text")) is str]
    said = {"content": texts or None, "role": role, "tool_calls": calls or None}
    return _read_choice({"index": 0, "finish_reason": reason, "message": said})


def _describe_call(id_: Json, named: dict[str, Json], arguments: Json) -> dict[str, Any]:
    function = {"name": named.get("name"), "arguments": arguments}
    return {"id": id_, "type": "function", "function": function}


def _objects(value: Json) -> list[dict[str, Json]]:
    items: Iterable[Json] = value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict)]


Datum: TypeAlias = tuple[bytes, str | None]
"""The bytes of a datum and its content type."""
_INPUTS: Final = ("messages", "prompt", "input")
_NO_INPUT: Final = "the request has neither `messages` nor a `prompt` nor an `input`"
_NOT_AN_OBJECT: Final = "the request is not a JSON object with messages or a prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """The data of a request."""

    data: Sequence[Datum] = field(repr=False)
    """At least one; several only for a list of prompts."""
    together: Datum | None = field(default=None, repr=False)
    """Several data as one datum."""
    attached: bool = False
    """True if the datum is an image, a sound or a file in the messages."""
    prompt: str | None = None
    """The user's last message."""
    problem: Problem | None = None


def parse_request(request: Document, name: str | None) -> ParsedRequest:
    """Parse a request, whose data are in the member `name`; an unreadable one is one datum."""
    raw, document = request.raw, request.value
    if not isinstance(document, dict):
        problem = request.problem or no_input(_NOT_AN_OBJECT)
        return ParsedRequest(data=[(raw, None)], problem=problem)
    if name is None:
        return ParsedRequest(data=[(raw, JSON)], problem=no_input(_NO_INPUT))
    if name == "messages" or (name == "input" and _objects(document[name])):
        return _parse_chat(document, raw, name)
    return _parse_completion(document[name], raw, member(raw, name))


def _parse_chat(document: dict[str, Json], raw: bytes, name: str) -> ParsedRequest:
    system = document.get("system", document.get("instructions"))
    conversation = read_conversation(name, document[name], system)
    attachments = conversation.attachments
    problem = join_problems(conversation.problems, most=3)
    datum: Datum = data_of(conversation.text)
    if len(attachments) == 1:
        datum = attachments[0]
    elif attachments:
        datum = data_at(raw, member(raw, name), document[name])
    elif not conversation.turns:
        datum, problem = (raw, JSON), problem or no_input(f"`{name}` is empty")
    return ParsedRequest(
        data=[datum],
        attached=len(attachments) == 1,
        prompt=conversation.prompt,
        problem=problem,
    )


def _parse_completion(prompt: Json, raw: bytes, span: Span | None) -> ParsedRequest:
    """Parse a prompt: a text, a list of texts, a text's tokens, or a list of those."""
    if isinstance(prompt, list) and len(prompt) == 1 and type(prompt[0]) in (str, list):
        (span,), (prompt,) = elements(raw, span, 1), prompt
    together = data_at(raw, span, prompt)
    if isinstance(prompt, list) and prompt and all(type(item) in (str, list) for item in prompt):
        pairs = zip(elements(raw, span, len(prompt)), prompt, strict=True)
        return ParsedRequest(
            data=[data_at(raw, span, item) for span, item in pairs], together=together
        )
    return ParsedRequest(data=[together], prompt=_text(prompt))


def _build_envelope(metadata: Json) -> list[bytes]:
    """Return OpenAI's own `{"key": "value", …}` as a list of `{key, type, value}`, the envelope; a
    list stays unchanged."""
    if isinstance(metadata, list) and metadata:
        return [written(metadata)]
    if not isinstance(metadata, dict) or not metadata:
        return []
    items = [
        {"key": key, "type": "string" if type(value) is str else "json", "value": value}
        for key, value in metadata.items()
    ]
    return [written(items)]


def _text(value: Json) -> str | None:
    return value if type(value) is str and value else None


_IMAGES: Final = "image_text_to_text"
_TEXTS: Final = "text_generation"
# The name of a choice's text. The prompt is not part of an answer: it belongs to the input.
_VECTOR: Final = "embedding"
_ANSWER: Final = "answer"
_TEXT: Final = "generated_text"


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read one inference; one per prompt if there is a list of prompts with answers for each."""
    document = read_document(exchange.request, exchange.request_headers, "request")
    asked = document.value if isinstance(document.value, dict) else {}
    name = next((name for name in _INPUTS if asked.get(name) is not None), None)
    request, answer = parse_request(document, name), parse_answer(exchange)
    kind = request.data[0][1] or ""
    is_image = request.attached and kind.startswith("image/")
    task_type = _IMAGES if is_image else None if call.operation == _VECTOR else _TEXTS
    text = _ANSWER if task_type_of(model.task_type or task_type).name == _IMAGES else _TEXT
    choices = list_choices(answer.members)
    names = {
        "model_name": _text(asked.get("model")) or _text(answer.members.get("model")),
        "id": _text(answer.members.get("id")),
    }
    envelope = _build_envelope(asked.get("metadata"))
    divided = _divide(request, choices)
    ok, error = find_failure(exchange, answer.document)
    standard = {"stream": asked.get("stream") is True}
    return Reading(
        inferences=[
            Inference(
                data=data,
                data_content_type=kind,
                response=_build_response(part, answer, names, text, alone=len(divided) == 1),
                metadata=envelope,
            )
            for (data, kind), part in divided
        ],
        items=name,
        model=names["model_name"],
        response_id=names["id"],
        action=call.operation or "completion",
        task_type=task_type,
        ok=ok,
        error=error,
        standard=standard | _read_standard(exchange, request, answer, choices),
        problem=join_problems([request.problem, answer.document.problem]),
    )


def _read_standard(
    exchange: Exchange, request: ParsedRequest, answer: ParsedAnswer, choices: Sequence[Choice]
) -> dict[str, Any]:
    """Return the tokens, the prompt about an attachment, and why the answer ended: one reason if
    all choices have the same, else a list."""
    standard = read_usage(answer.members)
    if request.attached and request.prompt:
        standard["prompts"] = [request.prompt]
    reasons = [choice.rest.get("finish_reason") for choice in choices]
    if any(reasons):
        is_same = reasons.count(reasons[0]) == len(reasons)
        standard["finish_reason"] = reasons[0] if is_same else reasons
    return standard | (read_first_token(exchange) if "chunks" in answer.original else {})


def _divide(
    request: ParsedRequest, choices: Sequence[Choice]
) -> list[tuple[Datum, Sequence[Choice]]]:
    """Return each datum with the choices about it; one with all if they cannot be divided."""
    data, count = request.data, len(request.data)
    if request.together and (count > MOST_INFERENCES or len(choices) % count):
        return [(request.together, choices)]
    size = len(choices) // count
    return [(datum, choices[at * size : (at + 1) * size]) for at, datum in enumerate(data)]


def _build_response(
    choices: Sequence[Choice],
    answer: ParsedAnswer,
    names: Mapping[str, str | None],
    text: str,
    *,
    alone: bool,
) -> bytes | None:
    """Return the choices about one datum; with the whole answer, if it is about this datum
    alone."""
    whole = answer.original if alone else {}
    vectors = [choice.rest[_VECTOR] for choice in choices if _VECTOR in choice.rest]
    if (whole and vectors) or not (choices or answer.original.get("chunks")):
        return answer_json(answer.document)
    if vectors:
        return v2_answer_json([output(_VECTOR, vectors)], **names)
    elements = [{text: choice.text, **choice.rest} for choice in choices]
    return v2_answer_json([output("choices", elements)], **names, **whole)


# Azure's paths name the deployment.
_BASE: Final = r"(?:(?:/openai)?/v1|/openai/deployments/(?P<model>[^/]+))"
_entry = partial(Protocol, transport="rest", read=read)
_MESSAGES: Final = (
    "the messages' text, each after its role where there are several; the only image, sound or "
    "file in them, of several the messages as JSON"
)
_GENERATED: Final = (
    "`{generated_text}` a choice (`{answer}` about an image, whose `prompts` are standard "
    "metadata), and all of it as it came: `answer`, or `chunks` in order"
)

OPENAI: Final = _entry(
    name="openai",
    calls="`POST /v1/chat/completions`, `/v1/completions`, also under `/openai` and under Azure's "
    "`/openai/deployments/…`",
    datum=f"{_MESSAGES}; each prompt of a list",
    answer=_GENERATED,
    path=re.compile(rf"{_BASE}/(?:(?P<operation>chat)/)?completions/?"),
)
RESPONSES: Final = _entry(
    name="openai-responses",
    calls="`POST /v1/responses`, also under `/openai`",
    datum="the same of `input`",
    answer="the same",
    path=re.compile(r"(?:/openai|(?:/openai)?/v1)/(?P<operation>response)s/?"),
)
EMBEDDINGS: Final = _entry(
    name="openai-embeddings",
    calls="`POST /v1/embeddings`, as for `openai`",
    datum="each `input` of a list",
    answer="to one input: as it came; to several: the `embedding` of each as V2's JSON",
    path=re.compile(rf"{_BASE}/(?P<operation>embedding)s/?"),
)
ANTHROPIC: Final = _entry(
    name="anthropic",
    calls="`POST /v1/messages`, also under `/anthropic`",
    datum="as for `openai`",
    answer="the same",
    path=re.compile(r"(?:/anthropic)?/v1/(?P<operation>message)s/?"),
)
