"""What a protocol is to the proxy: how to recognise its calls, and how to read what went through.

All of it is pure: bytes in, values out. Nothing here raises on what strangers sent: what cannot be
read is said in `Reading.problem`, and kept whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from inference_store.proxy.exchange import Exchange, Headers, Transport

from .problems import Problem

Kind: TypeAlias = Literal["infer", "stream"]
"""`stream`: the answer comes in parts (SSE, gRPC messages)."""
Division: TypeAlias = Literal["inputs", "rows", "elements"]
"""What an inference has of V2's tensors: one of them, or an element of one of BYTES; a row of each;
an element of each, whatever its datatype."""


@dataclass(frozen=True, slots=True)
class Call:
    """What the request line says of a call that is to be captured."""

    protocol: "Protocol"
    kind: Kind
    model: str | None = None
    """The model's name in the path, unescaped; None: the body or the configuration says it."""
    version: str | None = None
    operation: str = ""
    """What the path asks for, in the protocol's word: `generate`, `explain`; "": there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the configuration says of a model, as far as reading needs it."""

    task_type: str | None = None
    """A name of `store.task_types.TASK_TYPES`, in any accepted spelling."""
    batched: bool = False
    """The first dimension of each tensor counts the inputs: the output mapping says so."""
    dialect: str | None = None
    """`mlserver` or `triton`: what a gRPC stream answers; None: told by its messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """One datum of an exchange, and what the model said of it."""

    data: bytes | None = field(default=None, repr=False)
    """The datum decoded (an image's or a text's bytes), or the tensors' bytes as they came."""
    data_content_type: str | None = None
    """Where the protocol says it; None: to be sniffed."""
    response: bytes | None = field(default=None, repr=False)
    """The answer to this datum: the body as it came where it is JSON and about this datum alone;
    else the same in V2's JSON, `{"model_name", "id", "outputs": [...]}`."""
    metadata: Sequence[bytes] = field(default=(), repr=False)
    """The envelopes that the caller sent for it, as JSON; by key, the last one wins."""
    request_id: str | None = None
    """The caller's own id of this inference alone, where an exchange has several."""
    response_id: str | None = None
    """The same as the answer has it."""
    ok: bool | None = None
    """Where this inference fails or not by itself (an item of a batch); None: as the exchange."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an exchange was about."""

    inferences: Sequence[Inference]
    """At least one, also of what could not be read: then the whole body is the datum."""
    model: str | None = None
    version: str | None = None
    """As the body or the answer names them, where the path does not."""
    request_id: str | None = None
    response_id: str | None = None
    action: str | None = None
    task_type: str | None = None
    """What the answers are by themselves; it counts where the configuration names none."""
    ok: bool | None = None
    """False where the answer says in-band that it failed; None: by its status."""
    error: str | None = None
    """The error text of the answer."""
    standard: Mapping[str, Any] = field(default_factory=dict)
    """Standard metadata that the protocol knows: prompts, tokens, timings; JSON values."""
    division: Division | None = None
    """How tensors became several inferences; None: they did not, or there are no tensors."""
    not_split: bool = False
    """It may be a batch, and is one inference all the same."""
    problem: Problem | None = None
    """What could not be read and where; None: all was read."""


Read: TypeAlias = Callable[[Exchange, Call, Model], Reading]
Strip: TypeAlias = Callable[[bytes, Headers], tuple[bytes, Headers] | None]
"""The request without its metadata, and its headers made right again; None: there is none in it."""
MOST_ERROR: Final = 64 * 1024
"""Most of an error's text that is read: far more than is kept, for what has to be taken out of it
is taken out before it is cut off."""
MOST_STRIPPED: Final = 16 * 1024 * 1024
"""Most bytes of a request that is stripped, with its content coding and without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One protocol."""

    name: str
    title: str
    transport: Transport
    recognise: Callable[["Protocol", str, str], Call | None]
    """From method and path (percent-escaped, in its normal form, no query): a call to be captured,
    or None: passed through."""
    read: Read
    strip: Strip | None = None
    """None: its requests hold no metadata that could be taken out."""
