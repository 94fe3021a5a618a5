"""The upstream that a call is forwarded to, by the configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc

from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules

_NO_RULES: Final = Rules()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTarget:
    """The upstream of one call, and its rules."""

    channel: grpc.aio.Channel
    call: Call | None = None
    """None if it only passes through."""
    is_unrecognised: bool = False
    """True if it passes through, but may be an inference."""
    upstream: str = ""
    """Its name in the configuration."""
    rules: Rules = _NO_RULES
    model: str = ""
    """The model's name for capture: the request's, else the configuration's."""
    timeout_seconds: float | None = None
    """The longest that a call may take; the caller's own deadline applies if it is earlier."""
    allow_shutdown: bool = False
    """True if OMI's Shutdown is forwarded."""


Route: TypeAlias = Callable[[str, str | None, str | None], CallTarget | None]
"""Returns the target of a method, a model and a version (None if the request does not name it);
None if no upstream serves the model."""
