"""Decides which exchanges are kept: a share of them, and those that are always kept."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from inference_store.inference.json_text import UnreadableJson, read_json, write_json
from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.proxy.protocols.protocol import Inference
from inference_store.proxy.rules import Sampling

_WHOLE = 1 << 64


def is_sampled(
    sampling: Sampling,
    *,
    model_id: str,
    task_type: str | None,
    inferences: Sequence[Inference],
    standard: Mapping[str, Any],
    ok: bool,
    chance: bytes,
) -> bool:
    """Return whether an exchange is kept.

    `chance`: random bytes of the exchange, which decide if there is no sampling key.
    """
    if sampling.share >= 1 or (sampling.always_errors and not ok):
        return True
    value = None if sampling.key is None else _find_value(sampling.key, inferences, standard)
    token = chance if value is None else f"{sampling.key}\0{value}".encode("utf-8", "replace")
    if _draw_number(model_id, token) < sampling.share * _WHOLE:
        return True
    limit = sampling.always_below
    return limit is not None and _is_below(limit, task_type, inferences)


def _draw_number(model_id: str, token: bytes) -> int:
    """Return a number from 0 to 2^64, the same for the same model and token in every process."""
    model = model_id.encode("utf-8", "replace")
    digest = blake2b(len(model).to_bytes(4, "big") + model + token, digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def _find_value(
    key: str, inferences: Iterable[Inference], standard: Mapping[str, Any]
) -> str | None:
    """Return the key's value in the first inference that has it."""
    for inference in inferences:
        for envelope in reversed(inference.metadata):
            entries = read_metadata(envelope).entries
            for entry in reversed(entries):
                if entry.key == key and entry.value is not None:
                    return entry.value
    standard_value = standard.get(key)
    if standard_value is None or isinstance(standard_value, str):
        return standard_value
    return (
        write_json(standard_value)
        if isinstance(standard_value, (dict, list))
        else str(standard_value)
    )


def _is_below(limit: float, task_type: str | None, inferences: Iterable[Inference]) -> bool:
    """Return whether the best score of one of the inferences is below the limit."""
    scores = (_best_score(inference.response, task_type) for inference in inferences)
    return any(score is not None and score < limit for score in scores)


def _best_score(response: bytes | None, task_type: str | None) -> float | None:
    if response is None:
        return None
    task = task_type_of(task_type)
    if task.read is None:
        return _find_highest_score(response)
    items = read_predictions(response, task_type=task).items or ()
    return max((item.score for item in items if item.score is not None), default=None)


def _find_highest_score(response: bytes) -> float | None:
    """Return the highest `score` anywhere in an answer of an unknown task."""
    try:
        waiting = [read_json(response)]
    except UnreadableJson:
        return None
    best: float | None = None
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            score = node.get("score")
            if isinstance(score, (int, float)) and not isinstance(score, bool):
                best = score if best is None else max(best, score)
        values = node.values() if isinstance(node, dict) else node
        if isinstance(node, (dict, list)):
            waiting.extend(member for member in values if isinstance(member, (dict, list)))
    return best
