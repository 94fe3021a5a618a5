"""Language models: OpenAI's chat, completions, responses and embeddings, as OpenAI, Azure, vLLM,
KServe and many others serve them, and Anthropic's messages.

Text in, text out. The datum of a chat is the text of its messages; if the chat has one image or
sound, that is the datum. The answer is `{"generated_text", "index", "finish_reason", …}` for each
choice.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

from inference_store.inference.json_text import Json
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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """A parsed answer."""

    document: Document
    """The answer's JSON; for a stream, its joined chunks."""
    original: dict[str, Json] = field(repr=False)
    """The unchanged answer: `answer`, or `chunks`."""
    choices: list[dict[str, Any]] = field(repr=False)
    """The choices without their text: `index`, `finish_reason`, `role`, `tool_calls` and so on."""
    texts: list[str | None] = field(repr=False)
    """The text of each choice."""

    def root_text(self, name: str) -> str | None:
        """Return a text of the answer's root; None if there is none."""
        value = self.document.value
        text = value.get(name) if isinstance(value, dict) else None
        return text if type(text) is str and text else None

    def read_standard(self) -> dict[str, Any]:
        """Return the tokens, and why the answer ended: one reason if all choices have the same,
        else a list."""
        standard = read_usage(self.document.value)
        reasons = [choice.get("finish_reason") for choice in self.choices]
        if any(reasons):
            is_same = reasons.count(reasons[0]) == len(reasons)
            standard["finish_reason"] = reasons[0] if is_same else reasons
        return standard


def parse_answer(exchange: Exchange) -> ParsedAnswer:
    """Parse the answer of an exchange, streamed or not."""
    plain = read_bytes(exchange.response, exchange.response_headers, "response")
    if is_event_stream(exchange.response_headers, plain.raw):
        stream = join_chunks(plain)
        problem = join_problems([plain.problem, *stream.problems], most=3)
        whole = Document(raw=plain.raw, value=stream.document, problem=problem)
        return _build_answer(whole, {"chunks": stream.chunks})
    plain = as_json(plain, "response")
    return _build_answer(plain, {"answer": plain.value})


def _build_answer(document: Document, original: dict[str, Json]) -> ParsedAnswer:
    choices = list_choices(document.value)
    return ParsedAnswer(
        document=document,
        original=original,
        choices=[_describe_choice(choice) for choice in choices],
        texts=[_read_text(choice) for choice in choices],
    )


def _find_message(choice: dict[str, Json]) -> dict[str, Json]:
    message = choice.get("message")
    return message if isinstance(message, dict) else {}


def _read_text(choice: dict[str, Json]) -> str | None:
    return text_of_parts(choice.get("text", _find_message(choice).get("content")))


def _describe_choice(choice: dict[str, Json]) -> dict[str, Any]:
    """Return a choice without the text, and without the log-probabilities of its tokens, which stay
    in the answer."""
    rest = {name: choice.get(name) for name in ("index", "finish_reason")}
    if "embedding" in choice:
        return {**rest, "embedding": choice["embedding"]}
    message = {name: value for name, value in _find_message(choice).items() if name != "content"}
    return {**rest, **{name: value for name, value in message.items() if value is not None}}


# Finds the choices of an answer: OpenAI's own, embeddings, and those that OpenAI's responses and
# Anthropic's messages are, with their calls of tools in OpenAI's form.


def list_choices(document: Json) -> list[dict[str, Any]]:
    """Return the choices, in the order of their indexes if they have any."""
    answer = document if isinstance(document, dict) else {}
    if isinstance(answer.get("output"), list):
        return [_from_response(answer, _objects(answer["output"]))]
    if isinstance(answer.get("content"), list):
        return [_from_message(answer, _objects(answer["content"]))]
    choices = _objects(answer.get("choices", answer.get("data")))
    if all(type(choice.get("index")) is int for choice in choices):
        choices.sort(key=lambda choice: int(choice["index"]))
    return choices


def _from_response(answer: dict[str, Json], items: list[dict[str, Json]]) -> dict[str, Any]:
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


def _from_message(answer: dict[str, Json], parts: list[dict[str, Json]]) -> dict[str, Any]:
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
) -> dict[str, Any]:
    texts = [part for part in content if type(part.get("text")) is str]
    said = {"role": role, "content": texts or None, "tool_calls": calls or None}
    return {"index": 0, "finish_reason": reason, "message": said}


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
    """A parsed request."""

    data: Sequence[Datum] = field(repr=False)
    """At least one; several only for a list of prompts."""
    together: Datum = field(repr=False)
    """All data as one datum."""
    attached: bool = False
    """True if the datum is an image, a sound or a file in the messages."""
    prompt: str | None = None
    """The user's last message."""
    name: str | None = None
    """The member with the messages or the prompts."""
    model: str | None = None
    stream: bool = False
    metadata: bytes | None = None
    """OpenAI's own `metadata`, as an envelope."""
    problem: Problem | None = None

    @property
    def is_image(self) -> bool:
        """True if the datum is an image."""
        kind = self.together[1]
        return self.attached and kind is not None and kind.startswith("image/")


def parse_request(request: Document) -> ParsedRequest:
    """Parse a request; an unreadable one is one datum."""
    document = request.value
    if not isinstance(document, dict):
        return _build_single(
            request.raw, None, request.problem or _describe_no_input(_NOT_AN_OBJECT)
        )
    name = next((name for name in _INPUTS if document.get(name) is not None), None)
    is_chat = name == "messages" or (name == "input" and _has_objects(document[name]))
    parse = _parse_chat if is_chat else _parse_completion
    return replace(
        parse(document, request.raw, name or ""),
        name=name,
        model=_text(document.get("model")),
        stream=document.get("stream") is True,
        metadata=_build_envelope(document.get("metadata")),
    )


def _has_objects(value: Json) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _parse_chat(document: dict[str, Json], raw: bytes, name: str) -> ParsedRequest:
    system = document.get("system", document.get("instructions"))
    conversation = read_conversation(name, document[name], system)
    problem = join_problems(conversation.problems, most=3)
    if len(conversation.attachments) == 1:
        datum = (conversation.attachments[0].data, conversation.attachments[0].content_type)
        return ParsedRequest(
            data=[datum], together=datum, attached=True, prompt=conversation.prompt, problem=problem
        )
    if conversation.attachments:
        datum = data_at(raw, member(raw, name), document[name])
        return ParsedRequest(
            data=[datum], together=datum, prompt=conversation.prompt, problem=problem
        )
    if not conversation.turns:
        return _build_single(raw, JSON, problem or _describe_no_input(f"`{name}` is empty"))
    datum = data_of(conversation.text)
    return ParsedRequest(data=[datum], together=datum, prompt=conversation.prompt, problem=problem)


def _parse_completion(document: dict[str, Json], raw: bytes, name: str) -> ParsedRequest:
    """Parse a prompt: a text, a list of texts, a text's tokens, or a list of those."""
    prompt = document.get(name)
    if prompt is None:
        return _build_single(raw, JSON, _describe_no_input(_NO_INPUT))
    span = member(raw, name)
    if isinstance(prompt, list) and len(prompt) == 1 and type(prompt[0]) in (str, list):
        (span,), (prompt,) = elements(raw, span, 1), prompt
    together = data_at(raw, span, prompt)
    if isinstance(prompt, list) and prompt and all(type(item) in (str, list) for item in prompt):
        pairs = zip(elements(raw, span, len(prompt)), prompt, strict=True)
        return ParsedRequest(
            data=[data_at(raw, span, item) for span, item in pairs], together=together
        )
    return ParsedRequest(data=[together], together=together, prompt=_text(prompt))


def _build_single(raw: bytes, content_type: str | None, problem: Problem) -> ParsedRequest:
    datum = (raw, content_type)
    return ParsedRequest(data=[datum], together=datum, problem=problem)


def _describe_no_input(sentence: str) -> Problem:
    return Problem(sentence, ("request", "no_input"))


def _build_envelope(metadata: Json) -> bytes | None:
    """Return `{"key": "value", …}` as a list of `{key, type, value}`; a list stays unchanged."""
    if isinstance(metadata, list) and metadata:
        return written(metadata)
    if not isinstance(metadata, dict) or not metadata:
        return None
    items = [
        {"key": key, "type": "string" if type(value) is str else "json", "value": value}
        for key, value in metadata.items()
    ]
    return written(items)


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
    request = parse_request(read_document(exchange.request, exchange.request_headers, "request"))
    answer = parse_answer(exchange)
    task_type = _IMAGES if request.is_image else None if call.operation == _VECTOR else _TEXTS
    ok, error = find_failure(exchange, answer.document)
    name = _ANSWER if task_type_of(model.task_type or task_type).name == _IMAGES else _TEXT
    return Reading(
        inferences=_build_inferences(request, answer, name),
        items=request.name,
        model=request.model or answer.root_text("model"),
        response_id=answer.root_text("id"),
        action=call.operation or "completion",
        task_type=task_type,
        ok=ok,
        error=error,
        standard=_read_standard(exchange, request, answer),
        problem=join_problems([request.problem, answer.document.problem]),
    )


def _read_standard(
    exchange: Exchange, request: ParsedRequest, answer: ParsedAnswer
) -> dict[str, Any]:
    standard: dict[str, Any] = {"stream": request.stream, **answer.read_standard()}
    if "chunks" in answer.original:
        standard |= read_first_token(exchange)
    if request.attached and request.prompt:
        standard["prompts"] = [request.prompt]
    return standard


def _build_inferences(request: ParsedRequest, answer: ParsedAnswer, name: str) -> list[Inference]:
    data, count = request.data, len(request.data)
    if count > MOST_INFERENCES or len(answer.choices) % count:
        data, count = [request.together], 1
    size = len(answer.choices) // count
    return [
        Inference(
            data=datum,
            data_content_type=kind,
            response=_build_response(
                request, answer, name, slice(at * size, (at + 1) * size), alone=count == 1
            ),
            metadata=[request.metadata] if request.metadata else [],
        )
        for at, (datum, kind) in enumerate(data)
    ]


def _build_response(
    request: ParsedRequest, answer: ParsedAnswer, name: str, which: slice, *, alone: bool
) -> bytes | None:
    """Return the choices about one datum; with the whole answer, if it is about this datum
    alone."""
    whole = answer.original if alone else {}
    vectors = [choice[_VECTOR] for choice in answer.choices[which] if _VECTOR in choice]
    if (whole and vectors) or not (answer.choices or answer.original.get("chunks")):
        return answer_json(answer.document)
    names = {"model_name": request.model or answer.root_text("model"), "id": answer.root_text("id")}
    if vectors:
        return v2_answer_json([output(_VECTOR, vectors)], **names)
    choices = zip(answer.texts[which], answer.choices[which], strict=True)
    elements = [{name: text, **rest} for text, rest in choices]
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
