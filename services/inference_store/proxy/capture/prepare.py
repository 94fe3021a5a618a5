"""From an exchange to what is written of it: read, name, sample, redact."""

from dataclasses import replace

from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.protocols.protocol import Reading

from .ids import storable_name
from .prepared import Prepared
from .reading import (
    by_its_name,
    is_ok,
    read_by_protocol,
    standard_of,
    written_bytes,
)
from .redaction import Redactor
from .registered import NO_REGISTRY, Registry
from .sampling import is_kept
from .unread_answers import without_answers, without_unread_answer
from .uuid7 import uuid7
from .work import Work, without_cut_bodies
from .writing import Chosen, Form, Writing


class Preparation:
    """Prepares exchanges by the settings; may be shared between threads."""

    def __init__(self, settings: CaptureSettings, registered: Registry = NO_REGISTRY) -> None:
        """`registered`: what the api says of a model, by its id."""
        self._registered = registered
        self._limit = 4 * settings.proxy_body_bytes
        self._form = Form(settings.proxy_key_prefix, settings.proxy_inline_bytes, self._limit)
        self._key = settings.proxy_redaction_key.get_secret_value()

    def choose(self, work: Work) -> Chosen | None:
        """Read an exchange; None where the sampling leaves it out."""
        work = self._with_registration(without_cut_bodies(work))
        reading = read_by_protocol(work, work.exchange)
        if written_bytes(reading) > self._limit:
            raise OverflowError("what is about all of its inferences would be written too often")
        work = by_its_name(work, reading)
        rules, exchange = work.rules, work.exchange
        if not rules.capture:
            return None
        model = _model_of(work, reading)
        model_id = storable_name(rules.model_id or model, "unknown")
        kept = is_kept(
            rules.sampling,
            model_id=model_id,
            task_type=rules.task_type or reading.task_type,
            inferences=reading.inferences,
            standard=standard_of(reading, exchange, rules),
            ok=all(is_ok(exchange, reading, each) for each in reading.inferences),
            chance=uuid7().bytes,
        )
        return Chosen(work, reading, model, model_id) if kept else None

    def _with_registration(self, work: Work) -> Work:
        """By the model's id, where the call or the configuration names it."""
        registered = self._registered(storable_name(work.rules.model_id or work.model, "unknown"))
        return work if registered is None else replace(work, registered=registered)

    def prepare(self, chosen: Chosen, producer: str, sequence: int) -> Prepared:
        """The objects and events of an exchange that is kept."""
        work, reading = chosen.work, chosen.reading
        redactor = Redactor(work.rules.redactions, self._key, limit=self._limit)
        exchange = work.exchange
        if work.rules.redactions:
            # What is made of a redacted request cannot hold what was taken out of it.
            exchange, why = without_unread_answer(redactor.request(exchange))
            reading = redactor.reading(read_by_protocol(work, exchange), exchange)
            reading = reading if why is None else without_answers(reading, why)
            exchange = redactor.answered(exchange)
        writing = Writing(chosen, exchange, reading, redactor, self._form)
        return writing.prepared(producer, sequence)


def _model_of(work: Work, reading: Reading) -> str:
    """Where no path names it, the body may: it was not read when the call was routed, and
    `work.model` is the upstream's name then."""
    is_unnamed = work.exchange.transport == "rest" and work.call.model is None
    return (reading.model if is_unnamed else None) or work.model or reading.model or ""
