"""Which exchanges are kept: a share of them, and what is always kept."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from inference_store.inference.json_text import UnreadableJson, read_json, write_json
from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.proxy.protocols.protocol import Inference
from inference_store.proxy.rules import Sampling

_WHOLE = 1 << 64


def is_kept(
    sampling: Sampling,
    *,
    model_id: str,
    task_type: str | None,
    inferences: Sequence[Inference],
    standard: Mapping[str, Any],
    ok: bool,
    chance: bytes,
) -> bool:
    """Whether an exchange is kept.

    `chance`: the exchange's own random bytes, which decide where there is no key to go by.
    """
    if sampling.share >= 1 or (sampling.always_errors and not ok):
        return True
    value = None if sampling.key is None else _value(sampling.key, inferences, standard)
    token = chance if value is None else f"{sampling.key}\0{value}".encode("utf-8", "replace")
    if _drawn(model_id, token) < sampling.share * _WHOLE:
        return True
    limit = sampling.always_below
    return limit is not None and _is_below(limit, task_type, inferences)


def _drawn(model_id: str, token: bytes) -> int:
    """0 to 2^64, the same for the same model and token in every process."""
    named = model_id.encode("utf-8", "replace")
    digest = blake2b(len(named).to_bytes(4, "big") + named + token, digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def _value(key: str, inferences: Iterable[Inference], standard: Mapping[str, Any]) -> str | None:
    """The key's value in the first inference that has it."""
    for inference in inferences:
        for envelope in reversed(inference.metadata):
            entries = read_metadata(envelope).entries
            for entry in reversed(entries):
                if entry.key == key and entry.value is not None:
                    return entry.value
    found = standard.get(key)
    if found is None or isinstance(found, str):
        return found
    return write_json(found) if isinstance(found, (dict, list)) else str(found)


def _is_below(limit: float, task_type: str | None, inferences: Iterable[Inference]) -> bool:
    """Whether the best score of one of them is below the limit."""
    scores = (_best_score(each.response, task_type) for each in inferences)
    return any(score is not None and score < limit for score in scores)


def _best_score(response: bytes | None, task_type: str | None) -> float | None:
    if response is None:
        return None
    known = task_type_of(task_type)
    if known.read is None:
        return _highest(response)
    items = read_predictions(response, task_type=known).items or ()
    return max((item.score for item in items if item.score is not None), default=None)


def _highest(response: bytes) -> float | None:
    """The highest `score` anywhere in an answer of an unknown task."""
    try:
        waiting = [read_json(response)]
    except UnreadableJson:
        return None
    best: float | None = None
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            score = found.get("score")
            if isinstance(score, (int, float)) and not isinstance(score, bool):
                best = score if best is None else max(best, score)
        values = found.values() if isinstance(found, dict) else found
        if isinstance(found, (dict, list)):
            waiting.extend(each for each in values if isinstance(each, (dict, list)))
    return best
