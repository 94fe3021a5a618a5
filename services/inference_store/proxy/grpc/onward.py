"""Where a call goes on to, as the configuration has it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc

from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules

_NO_RULES: Final = Rules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Onward:
    """One call's way on."""

    channel: grpc.aio.Channel
    call: Call | None = None
    """None: it only passes through."""
    is_unrecognised: bool = False
    """It passes through, though it may be an inference."""
    upstream: str = ""
    """Its name in the configuration."""
    rules: Rules = _NO_RULES
    model: str = ""
    """As capture names it: by the request, else by the configuration."""
    timeout_seconds: float | None = None
    """The longest that a call may take; the caller's own deadline counts where it is earlier."""
    allow_shutdown: bool = False
    """Whether OMI's Shutdown passes."""


Route: TypeAlias = Callable[[str, str | None, str | None], Onward | None]
"""From method, model and version, each None where the request does not say it. Answers None where
nobody serves the model."""
