"""What an answer says: its choices as elements that the task types read, and its tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from inference_store.inference.json_text import Json
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.documents import Document, parsed, read_bytes
from inference_store.proxy.protocols.event_stream import is_event_stream
from inference_store.proxy.protocols.problems import Problem
from inference_store.proxy.protocols.problems import joined as joined_problems

from .chunks import joined
from .messages import text_of_parts

_TOKENS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer, read."""

    document: Document
    """The answer's JSON; of a stream, its chunks joined."""
    kept: dict[str, Json] = field(repr=False)
    """All of it as it came: `answer`, or `chunks`."""
    choices: list[dict[str, Any]] = field(repr=False)
    """Without their text: `index`, `finish_reason`, `role`, `tool_calls` and so on."""
    texts: list[str | None] = field(repr=False)
    """The text of each choice."""
    problem: Problem | None = None

    def said(self, name: str) -> str | None:
        """A text of the answer's root."""
        value = self.document.value
        found = value.get(name) if isinstance(value, dict) else None
        return found if type(found) is str and found else None

    def standard(self) -> dict[str, Any]:
        """Tokens, and why it ended: one reason where all choices have the same, else a list."""
        value = self.document.value
        usage = value.get("usage") if isinstance(value, dict) else None
        tokens = usage if isinstance(usage, dict) else {}
        found = {name: tokens[name] for name in _TOKENS if type(tokens.get(name)) is int}
        reasons = [choice.get("finish_reason") for choice in self.choices]
        if any(reasons):
            found["finish_reason"] = reasons[0] if _all_alike(reasons) else reasons
        return found


def answered(exchange: Exchange) -> Answered:
    """The answer of an exchange, at once or streamed."""
    plain = read_bytes(exchange.response, exchange.response_headers, "response")
    if is_event_stream(exchange.response_headers, plain.raw):
        found = joined(plain)
        problem = joined_problems([plain.problem, *found.problems], most=3)
        whole = Document(raw=plain.raw, value=found.document, problem=problem)
        return _answered(whole, {"chunks": found.chunks}, problem)
    if not plain.problem and plain.raw.strip():
        plain = parsed(plain.raw, "response")
    return _answered(plain, {"answer": plain.value}, plain.problem)


def _answered(document: Document, kept: dict[str, Json], problem: Problem | None) -> Answered:
    choices = list(_choices(document.value))
    return Answered(
        document=document,
        kept=kept,
        choices=[_said_of(choice) for choice in choices],
        texts=[_text(choice) for choice in choices],
        problem=problem,
    )


def _choices(document: Json) -> Iterator[dict[str, Json]]:
    """In the order of their indexes, where they have any."""
    found = document.get("choices") if isinstance(document, dict) else None
    choices = [each for each in (found if isinstance(found, list) else []) if type(each) is dict]
    if all(type(choice.get("index")) is int for choice in choices):
        choices.sort(key=lambda choice: int(choice["index"]))
    yield from choices


def _message(choice: dict[str, Json]) -> dict[str, Json]:
    message = choice.get("message")
    return message if isinstance(message, dict) else {}


def _text(choice: dict[str, Json]) -> str | None:
    return text_of_parts(choice.get("text", _message(choice).get("content")))


def _said_of(choice: dict[str, Json]) -> dict[str, Any]:
    """All but the text, and the log-probabilities of its tokens, which stay in the answer."""
    rest = {name: choice.get(name) for name in ("index", "finish_reason")}
    message = {name: value for name, value in _message(choice).items() if name != "content"}
    return {**rest, **{name: value for name, value in message.items() if value is not None}}


def _all_alike(reasons: list[Json]) -> bool:
    return all(reason == reasons[0] for reason in reasons)
