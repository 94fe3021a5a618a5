"""Reads an answer: its choices as elements that the task types read, and its tokens."""

from dataclasses import dataclass, field
from typing import Any

from inference_store.inference.json_text import Json
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.documents import Document, parsed, read_bytes
from inference_store.proxy.protocols.event_stream import is_event_stream
from inference_store.proxy.protocols.problems import Problem, join_problems
from inference_store.proxy.protocols.usage import read_usage

from .choices import list_choices
from .chunks import join_chunks
from .messages import text_of_parts


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
    problem: Problem | None = None

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
            standard["finish_reason"] = reasons[0] if _are_equal(reasons) else reasons
        return standard


def parse_answer(exchange: Exchange) -> ParsedAnswer:
    """Parse the answer of an exchange, streamed or not."""
    plain = read_bytes(exchange.response, exchange.response_headers, "response")
    if is_event_stream(exchange.response_headers, plain.raw):
        stream = join_chunks(plain)
        problem = join_problems([plain.problem, *stream.problems], most=3)
        whole = Document(raw=plain.raw, value=stream.document, problem=problem)
        return _build_answer(whole, {"chunks": stream.chunks}, problem)
    if not plain.problem and plain.raw.strip():
        plain = parsed(plain.raw, "response")
    return _build_answer(plain, {"answer": plain.value}, plain.problem)


def _build_answer(
    document: Document, original: dict[str, Json], problem: Problem | None
) -> ParsedAnswer:
    choices = list_choices(document.value)
    return ParsedAnswer(
        document=document,
        original=original,
        choices=[_describe_choice(choice) for choice in choices],
        texts=[_read_text(choice) for choice in choices],
        problem=problem,
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


def _are_equal(reasons: list[Json]) -> bool:
    return all(reason == reasons[0] for reason in reasons)
