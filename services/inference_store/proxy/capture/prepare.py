"""Prepares an exchange for writing: read, name, sample, redact."""

from dataclasses import replace

from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.protocols.protocol import Reading

from .capture_builder import CaptureBuilder, ChosenExchange, OutputLimits
from .exchange_reading import (
    apply_named_rules,
    count_written_bytes,
    is_ok,
    read_by_protocol,
    standard_metadata,
)
from .ids import storable_name
from .prepared_capture import PreparedCapture
from .redaction import Redactor
from .registered_model import NO_REGISTRY, Registry
from .sampling import is_sampled
from .unreadable_answers import drop_responses, drop_unreadable_answer
from .uuid7 import uuid7
from .work import Work, remove_cut_bodies


class Preparation:
    """Prepares exchanges by the settings; may be shared between threads."""

    def __init__(self, settings: CaptureSettings, registered: Registry = NO_REGISTRY) -> None:
        """`registered` returns a model's registration by its id."""
        self._registered = registered
        self._limit = 4 * settings.proxy_body_bytes
        self._form = OutputLimits(
            settings.proxy_key_prefix, settings.proxy_inline_bytes, self._limit
        )
        self._key = settings.proxy_redaction_key.get_secret_value()

    def choose(self, work: Work) -> ChosenExchange | None:
        """Read an exchange; None if the sampling leaves it out."""
        work = self._with_registration(remove_cut_bodies(work))
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

    def _with_registration(self, work: Work) -> Work:
        """Add the model's registration, if the call or the configuration names the model."""
        registered = self._registered(storable_name(work.rules.model_id or work.model, "unknown"))
        return work if registered is None else replace(work, registered=registered)

    def prepare(self, chosen: ChosenExchange, producer: str, sequence: int) -> PreparedCapture:
        """Return the objects and events of a chosen exchange."""
        work, reading = chosen.work, chosen.reading
        redactor = Redactor(work.rules.redactions, self._key, limit=self._limit)
        exchange = work.exchange
        if work.rules.redactions:
            # Data read from a redacted request cannot contain what was removed from it.
            exchange, why = drop_unreadable_answer(redactor.request(exchange))
            reading = redactor.reading(read_by_protocol(work, exchange), exchange)
            reading = reading if why is None else drop_responses(reading, why)
            exchange = redactor.answered(exchange)
        builder = CaptureBuilder(chosen, exchange, reading, redactor, self._form)
        return builder.build(producer, sequence)


def _model_of(work: Work, reading: Reading) -> str:
    """Return the model's name. If no path names it, the body may: it was not read when the call was
    routed, and `work.model` is the upstream's name then."""
    is_unnamed = work.exchange.transport == "rest" and work.call.model is None
    return (reading.model if is_unnamed else None) or work.model or reading.model or ""
