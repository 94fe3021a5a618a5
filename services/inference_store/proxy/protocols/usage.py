"""Reads what a language model's answer cost: tokens, by the same names for every protocol, and the
time to the first token of a stream."""

from collections.abc import Mapping
from typing import Any, Final

from inference_store.inference.json_text import Json
from inference_store.proxy.exchange import Exchange

_COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "completion_tokens": ("completion_tokens", "output_tokens"),
    "total_tokens": ("total_tokens",),
    "cached_tokens": ("cached_tokens", "cache_read_input_tokens"),
    "reasoning_tokens": ("reasoning_tokens",),
}
"""Standard metadata, and the names that servers give them, in `usage` or in its `…_details`."""


def read_usage(answer: Json) -> dict[str, Any]:
    """Return the tokens in an answer's `usage`."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return {}
    details = [part for name, part in usage.items() if name.endswith("_details")]
    counts: dict[str, Json] = {}
    for part in (*(part for part in details if isinstance(part, dict)), usage):
        counts |= part
    return {
        name: next(counts[spelling] for spelling in spellings if type(counts.get(spelling)) is int)
        for name, spellings in _COUNTS.items()
        if any(type(counts.get(spelling)) is int for spelling in spellings)
    }


def read_first_token(exchange: Exchange) -> dict[str, Any]:
    """Return the milliseconds from forwarding a call to the first part of its streamed answer."""
    if exchange.forwarded_at is None or exchange.first_part_at is None:
        return {}
    waited = exchange.first_part_at - exchange.forwarded_at
    return {"time_to_first_token_ms": round(waited.total_seconds() * 1000, 3)}
