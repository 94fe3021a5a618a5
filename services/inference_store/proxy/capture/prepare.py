"""Prepares an exchange for writing: read, name, sample, redact."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from inference_store.inference.json_text import (
    UnreadableJson,
    is_json_number,
    read_json,
    write_json,
)
from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.capture.capture_builder import storable_name, uuid7
from inference_store.proxy.capture.registrations import Registry, Work, remove_cut_bodies
from inference_store.proxy.configuration import Sampling
from inference_store.proxy.protocols.protocol import Inference, Reading

from .capture_builder import (
    CaptureBuilder,
    ChosenExchange,
    apply_named_rules,
    count_written_bytes,
    is_ok,
    read_by_protocol,
    standard_metadata,
)
from .prepared_capture import PreparedCapture
from .redaction import Redactor


class Preparation:
    """Prepares exchanges by the settings; may be shared between threads."""

    def __init__(self, settings: CaptureSettings, registered: Registry = lambda _: None) -> None:
        """`registered` returns a model's registration by its id."""
        self._registered = registered
        self._limit = 4 * settings.proxy_body_bytes
        self._prefix = settings.proxy_key_prefix
        self._key = settings.proxy_redaction_key.get_secret_value()

    def choose(self, work: Work) -> ChosenExchange | None:
        """Read an exchange; None if the sampling leaves it out."""
        registered = self._registered(storable_name(work.rules.model_id or work.model, "unknown"))
        work = replace(remove_cut_bodies(work), registered=registered or work.registered)
        reading = read_by_protocol(work, work.exchange)
        if count_written_bytes(reading) > self._limit:
            raise OverflowError("what is about all of its inferences would be written too often")
        work = apply_named_rules(work, reading)
        rules, exchange = work.rules, work.exchange
        if not rules.capture:
            return None
        model = _model_of(work, reading)
        model_id = storable_name(rules.model_id or model, "unknown")
        is_chosen = is_sampled(
            rules.sampling,
            model_id=model_id,
            task_type=rules.task_type or reading.task_type,
            inferences=reading.inferences,
            standard=standard_metadata(reading, exchange, rules),
            ok=all(is_ok(exchange, reading, inference) for inference in reading.inferences),
            chance=uuid7().bytes,
        )
        return ChosenExchange(work, reading, model, model_id) if is_chosen else None

    def prepare(self, chosen: ChosenExchange, producer: str, sequence: int) -> PreparedCapture:
        """Return the objects and events of a chosen exchange."""
        work, reading = chosen.work, chosen.reading
        redactor = Redactor(work.rules.redactions, self._key, limit=self._limit)
        exchange = work.exchange
        if work.rules.redactions:
            # Data read from a redacted request cannot contain what was removed from it.
            exchange = redactor.request(exchange)
            reading = redactor.reading(read_by_protocol(work, exchange), exchange)
        builder = CaptureBuilder(
            chosen, exchange, reading, redactor, prefix=self._prefix, limit=self._limit
        )
        return builder.build(producer, sequence)


def _model_of(work: Work, reading: Reading) -> str:
    """Return the model's name. If no path names it, the body may: it was not read when the call was
    routed, and `work.model` is the upstream's name then."""
    is_unnamed = work.exchange.transport == "rest" and work.call.model is None
    return (reading.model if is_unnamed else None) or work.model or reading.model or ""


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
    model = model_id.encode("utf-8", "replace")
    digest = blake2b(len(model).to_bytes(4, "big") + model + token, digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def _find_value(
    key: str, inferences: Iterable[Inference], standard: Mapping[str, Any]
) -> str | None:
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
    scores = []
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
            scores += [value["score"]] if is_json_number(value.get("score")) else []
        elif isinstance(value, list):
            waiting.extend(value)
    return max(scores, default=None)
