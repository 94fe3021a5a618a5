"""Prepares an exchange for writing: read, name, sample, redact."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from inference_store.proxy.protocols.protocol import Inference

from .capture_builder import (
    CaptureBuilder,
    ChosenExchange,
    apply_named_rules,
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
        sizes = (
            len(inference.data or b"")
            + len(inference.response or b"")
            + sum(map(len, inference.metadata))
            for inference in reading.inferences
        )
        if sum(sizes) > self._limit:
            raise OverflowError("what is about all of its inferences would be written too often")
        work = apply_named_rules(work, reading)
        rules, exchange = work.rules, work.exchange
        if not rules.capture:
            return None
        # If no path names the model, the body may: it was not read when the call was routed, and
        # `work.model` is the upstream's name then.
        is_unnamed = exchange.transport == "rest" and work.call.model is None
        model = (reading.model if is_unnamed else None) or work.model or reading.model or ""
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
    model = model_id.encode("utf-8", "replace")
    digest = blake2b(len(model).to_bytes(4, "big") + model + token, digest_size=8).digest()
    if int.from_bytes(digest, "big") < sampling.share * _WHOLE:
        return True
    limit = sampling.always_below
    return limit is not None and _is_below(limit, task_type, inferences)


def _find_value(
    key: str, inferences: Iterable[Inference], standard: Mapping[str, Any]
) -> str | None:
    for inference in inferences:
        for envelope in reversed(inference.metadata):
            entries = read_metadata(envelope).entries
            for entry in reversed(entries):
                if entry.key == key and entry.value is not None:
                    return entry.value
    value = standard.get(key)
    if value is None or isinstance(value, str):
        return value
    return write_json(value) if isinstance(value, (dict, list)) else str(value)


def _is_below(limit: float, task_type: str | None, inferences: Iterable[Inference]) -> bool:
    """Return whether the best score of an answer is below a limit; False if none has a score."""
    task = task_type_of(task_type)
    for response in filter(None, (inference.response for inference in inferences)):
        if task.read is None:
            scores = list(_find_scores(response))
        else:
            items = read_predictions(response, task_type=task).items or ()
            scores = [item.score for item in items if item.score is not None]
        if scores and max(scores) < limit:
            return True
    return False


def _find_scores(response: bytes) -> Iterator[float]:
    """Yield each `score` anywhere in an answer of an unknown task."""
    try:
        waiting = [read_json(response)]
    except UnreadableJson:
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
            if is_json_number(value.get("score")):
                yield float(value["score"])
        elif isinstance(value, list):
            waiting.extend(value)
