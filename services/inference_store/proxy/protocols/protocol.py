"""A protocol, as the proxy uses it: recognises calls, and reads the exchanges.

All of it is pure: bytes in, values out. Nothing here raises on untrusted input: `Reading.problem`
describes what cannot be read, and it is kept whole.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote

from inference_store.inference.events import CaptureKind, CaptureSide
from inference_store.proxy.exchange import Body, Exchange, Headers, Transport

from .tensors import Tensor

Reason: TypeAlias = tuple[CaptureSide, CaptureKind]
"""A side and its problem: an entry of `CAPTURE_PROBLEMS`."""
NAMES: Final[dict[CaptureSide, str]] = {"request": "the request", "response": "the answer"}
"""The names of the two sides in sentences."""
_MOST_SENTENCES: Final = 8
MOST_INFERENCES: Final = 1024
"""The most inferences of one request; a request with more is kept as one inference."""


class Problem(str):
    """A sentence and its reasons."""

    __slots__ = ("reasons",)
    reasons: Sequence[Reason]

    def __new__(cls, sentence: str, *reasons: Reason) -> "Problem":
        """`reasons`: one for each problem in the sentence."""
        problem = super().__new__(cls, sentence)
        problem.reasons = reasons
        return problem

    @classmethod
    def unreadable(cls, sentence: str, side: CaptureSide = "request") -> "Problem":
        """Return the problem of a part that cannot be read."""
        return cls(sentence, (side, "unreadable"))

    @classmethod
    def no_input(cls, sentence: str) -> "Problem":
        """Return the problem of a request in which there is nothing to infer from."""
        return cls(sentence, ("request", "no_input"))

    @classmethod
    def missing(cls, body: Body, side: CaptureSide) -> "Problem | None":
        """Return the problem of a body with missing parts; None if it is whole."""
        size = sum(map(len, body.parts))
        sentence = f"of {NAMES[side]}'s {body.size} bytes only {size} are there"
        if body.gap == "missing":
            sentence = f"{NAMES[side]} was not logged"
        return None if body.whole else cls(sentence, *list_gaps(body, side))

    @classmethod
    def mismatch(cls, inputs: int, answers: int, what: str, of: str) -> "Problem | None":
        """Return why inputs are kept as one inference; None if each of them has an answer. `what`,
        `of`: the names of inputs and answers."""
        if inputs > MOST_INFERENCES:
            sentence = f"{inputs} {what}, over {MOST_INFERENCES}: kept as one inference"
            return cls(sentence, ("request", "not_divided"))
        sentence = f"{answers} {of} to {inputs} {what}: kept as one inference"
        return None if inputs == answers else cls(sentence, ("response", "not_divided"))


def join_problems(
    problems: Iterable[Problem | None], most: int = _MOST_SENTENCES
) -> Problem | None:
    """Join distinct problems, None if there is none, to the first few sentences and all reasons."""
    distinct = list(dict.fromkeys(problem for problem in problems if problem))
    reasons = dict.fromkeys(reason for problem in distinct for reason in problem.reasons)
    return Problem("; ".join(distinct[:most]), *reasons) if distinct else None


def list_gaps(body: Body, side: CaptureSide) -> list[Reason]:
    """Return the reasons of a body with missing parts; none if there is no answer at all."""
    if body.gap is None or (side == "response" and not body.size and not body.lost):
        return []
    return [(side, body.gap)]


Kind: TypeAlias = Literal["infer", "stream"]
"""`stream`: the answer comes in parts (SSE, gRPC messages)."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is captured, as the request line describes it."""

    protocol: "Protocol"
    kind: Kind
    model: str | None = None
    """The model's name in the path, unescaped; None if the body or the configuration names it."""
    version: str | None = None
    operation: str = ""
    """The operation in the path: `generate`, `explain`; empty if there is only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The configuration of a model, as far as reading needs it."""

    task_type: str | None = None
    """A name of `TASK_TYPES`, in any accepted spelling."""
    batched: bool = False
    """The first dimension of each tensor counts the inputs: the output mapping says so."""
    dialect: str | None = None
    """`mlserver` or `triton`: the messages that answer a gRPC stream; None if they decide it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """One datum of an exchange, and the model's answer to it."""

    data: bytes | None = field(default=None, repr=False)
    """The decoded datum (an image's or a text's bytes), or the unchanged bytes of the tensors."""
    data_content_type: str | None = None
    """The content type, if the protocol states it; None if the bytes decide it."""
    response: bytes | None = field(default=None, repr=False)
    """The answer to this datum: the unchanged body if it is JSON and about this datum alone; else
    its content in V2's JSON, `{"model_name", "id", "outputs": [...]}`."""
    metadata: Sequence[bytes] = field(default=(), repr=False)
    """The envelopes that the caller sent for it, as JSON; by key, the last one wins."""
    error: str | None = None
    """Why it failed, as an item of a batch."""
    tensors: Sequence[Tensor] = field(default=(), repr=False, compare=False)
    """Its part of V2's inputs."""

    def answered(self, answer: "Inference") -> "Inference":
        """Return the datum with its answer, which has no datum."""
        return replace(self, response=answer.response, error=answer.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The inferences that were read from an exchange."""

    inferences: Sequence[Inference]
    """At least one, even if the exchange could not be read: then the whole body is the datum."""
    model: str | None = None
    version: str | None = None
    """The names in the body or the answer, if the path has none."""
    request_id: str | None = None
    response_id: str | None = None
    action: str | None = None
    task_type: str | None = None
    """The task type of the answers; it applies if the configuration names none."""
    error: str | None = None
    """The text of a failure that the answer reports; None if it reports none."""
    standard: Mapping[str, Any] = field(default_factory=dict)
    """Standard metadata that the protocol knows: prompts, tokens, timings; JSON values."""
    items: str | None = None
    """The member of the request's JSON whose items are the inferences'; None for others."""
    not_split: bool = False
    """True if it may be a batch, but was read as one inference."""
    problem: Problem | None = None
    """The problem if something could not be read; None if all was read."""


Read: TypeAlias = Callable[[Exchange, Call, Model], Reading]
Strip: TypeAlias = Callable[[bytes, Headers], tuple[bytes, Headers] | None]
"""Returns the request without its metadata, and its corrected headers; None if it has none."""
MOST_ERROR: Final = 64 * 1024
"""The most characters of an error's text that are read: far more than are kept, because redactions
are made before the text is cut off."""
MOST_STRIPPED: Final = 16 * 1024 * 1024
"""The most bytes of a request that is stripped, with and without its content coding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One protocol: a row of docs/reference/protocols.md."""

    name: str
    transport: Transport = "rest"
    path: re.Pattern[str]
    """Matches the paths of its calls (percent-escaped, in their normal form, no query); may have
    the groups `model`, `version` and `operation`."""
    methods: Collection[str] = ("POST",)
    """Over REST; empty: any."""
    streams: Collection[str] = ()
    """The operations whose answers come in parts."""
    read: Read
    strip: Strip | None = None
    """None if its requests contain no metadata to remove."""

    def recognise(self, method: str, path: str) -> Call | None:
        """Return the call to capture; None if it passes through."""
        is_method = self.transport == "grpc" or not self.methods or method in self.methods
        match = self.path.fullmatch(path) if is_method else None
        if match is None:
            return None
        named = match.groupdict()
        operation = named.get("operation") or ""
        model, version = (unquote(named.get(name) or "") or None for name in ("model", "version"))
        kind: Kind = "stream" if operation in self.streams else "infer"
        return Call(self, kind, model, version, operation)
