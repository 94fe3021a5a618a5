"""Prepares an exchange for writing: read, name, sample, redact, and build the objects and the event
of each inference.

Pure except for the clock and randomness.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any
from zlib import crc32

import imagesize

from inference_store.inference.content_types import content_type_of
from inference_store.inference.events import gravest
from inference_store.inference.json_text import (
    UnreadableJson,
    is_json_number,
    read_json,
    write_json,
)
from inference_store.inference.layout import (
    MOST_CHARACTERS,
    is_id,
)
from inference_store.inference.metadata import read_metadata
from inference_store.inference.stored_requests import REPLAY_HEADER, ReplayMark
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.configuration import Rules, Sampling, find_rules, join_redactions
from inference_store.proxy.exchange import Exchange, Headers, from_header, header
from inference_store.proxy.protocols.documents import walk
from inference_store.proxy.protocols.protocol import Inference, Model, Reading, list_gaps

from .redaction import Redactor, find_trace, metadata_from_headers
from .registrations import Registry, Work, remove_cut_bodies
from .segments import (
    Draft,
    Event,
    Segment,
    complete_event,
    encode_event,
    encode_metadata,
    make_metadata_blob,
    plain_text,
    uuid7,
)
from .stored_request import build_requests

# The id of an inference: the caller's own, if it sent one.


ID_HEADER = "inference-store-id"
"""The header that names the id in the answer, if it came from a header or was made here."""
BASE_ID, REQUEST_ID = "chariot-inference-base-id", "x-request-id"
# Leaves room for `-<index>`: a longer name is not used.
_LONGEST_BASE = MOST_CHARACTERS - 8
_MOST_ALIASES = 8


@dataclass(frozen=True, slots=True)
class Ids:
    """An inference's id, and its aliases."""

    inference_id: str
    aliases: tuple[str, ...]


def id_for_answer(request_headers: Headers) -> tuple[str, str]:
    """Return the id header that the answer should carry, known before anything is decoded.

    If the request's body has an id, that one is used, and this one is an alias. Put it into
    `Exchange.response_headers`, too: from there it is read, and not made a second time.
    """
    names = [header(request_headers, name) for name in (BASE_ID, REQUEST_ID)]
    if (mark := find_mark(request_headers)) is not None:
        names = [mark.inference_id]
    return ID_HEADER, next(iter(_distinct(names)), None) or str(uuid7())


def find_mark(request_headers: Headers) -> ReplayMark | None:
    """Return which inference a call repeats; None if it is no replay."""
    return ReplayMark.read(header(request_headers, REPLAY_HEADER))


def ids_of(
    exchange: Exchange,
    reading: Reading,
    clean: Callable[[str | None], str | None] = lambda name: name,
) -> Sequence[Ids]:
    """Return the ids of an exchange's inferences, in order: the request's, else the base id's
    header, else the answer's, else the request id's header, else the one made here.

    Several inferences share the exchange's ids as aliases, and are distinguished by `-<index>`. So
    are the exchanges of a gRPC stream, by their `position`, if they have no id of their own; the
    first one is named as if it were alone. `clean` removes redacted values from an id; it returns
    None if nothing is left. A replay has an id of its own and no other, so that the caller's still
    finds what it repeats alone.
    """
    position, request_headers = exchange.position, exchange.request_headers
    request_id, response_id = reading.request_id, reading.response_id
    own: tuple[str | None, ...] = ()
    if position:
        own, request_id, response_id = (request_id, response_id), None, None
    candidates: tuple[str | None, ...] = (
        request_id,
        header(request_headers, BASE_ID),
        response_id,
        header(request_headers, REQUEST_ID),
        header(exchange.response_headers, ID_HEADER),
    )
    if (mark := find_mark(request_headers)) is not None:
        own, candidates = (), (mark.inference_id,)
    names = _distinct(map(clean, candidates)) or (str(uuid7()),)
    cleaned, count = _distinct(map(clean, own)), len(reading.inferences)
    if cleaned or (count == 1 and not position):
        first, *others = dict.fromkeys((*cleaned, *names))
        return (Ids(first, tuple(others[:_MOST_ALIASES])),)
    indexes = range(position, position + count)
    return [Ids(f"{names[0]}-{index}", names[:_MOST_ALIASES]) for index in indexes]


def storable_name(text: str | None, otherwise: str) -> str:
    """Return a model's name as an event may carry it."""
    name = plain_text(text, MOST_CHARACTERS)
    return name if name and is_id(name) else otherwise


def _distinct(names: Iterable[str | None]) -> tuple[str, ...]:
    usable = (name for name in names if name and is_id(name) and len(name) <= _LONGEST_BASE)
    return tuple(dict.fromkeys(usable))


def read_by_protocol(work: Work, exchange: Exchange) -> Reading:
    """Read an exchange by its protocol, redacted or not; at least one inference."""
    rules = work.rules
    model = Model(
        task_type=rules.task_type or work.registered.task_type,
        batched=rules.batched or work.registered.batched,
        dialect=work.dialect,
    )
    reading = work.call.protocol.read(exchange, work.call, model)
    inferences, request = reading.inferences, exchange.request
    # nothing of it was kept; over gRPC its answers may have come without it
    if not request.parts and (exchange.transport == "grpc" or not request.whole):
        inferences = [replace(inference, data=None) for inference in inferences]
    # A header's metadata are about every inference; what the body says of one wins.
    if (envelope := from_header(exchange.request_headers)) is not None:
        inferences = [replace(each, metadata=(envelope, *each.metadata)) for each in inferences]
    return replace(reading, inferences=inferences)


def _apply_named_rules(work: Work, reading: Reading) -> Work:
    """Return the exchange with the rules of the model's name, if only the body names the model."""
    if work.by_name is None:
        return work
    if reading.model:
        rules = find_rules(work.by_name, reading.model, reading.version)
        return replace(work, rules=rules, model=reading.model)
    # it is unknown whose rules apply
    redactions = join_redactions(work.by_name)
    return replace(work, rules=work.rules.model_copy(update={"redactions": redactions}))


def standard_metadata(reading: Reading, exchange: Exchange, rules: Rules) -> dict[str, Any]:
    """Return the standard metadata: those the protocol reads, and those of headers."""
    trace = find_trace(exchange.request_headers)
    standard = dict(reading.standard)
    standard |= metadata_from_headers(exchange.request_headers, rules.metadata_headers)
    mark = find_mark(exchange.request_headers)
    standard |= {} if trace is None else {"traceparent": trace[0]}
    return standard if mark is None else standard | mark.metadata


def is_ok(exchange: Exchange, reading: Reading, inference: Inference) -> bool:
    """Return whether an inference succeeded: neither its status, its answer nor itself fails."""
    if exchange.error is not None or exchange.grpc_code:
        return False
    if exchange.transport == "rest" and not 200 <= (exchange.http_status or 0) < 400:
        return False
    if exchange.transport == "grpc" and exchange.grpc_code is None:
        return False
    return inference.error is None and reading.error is None


class Preparation:
    """Prepares exchanges by the settings; may be shared between threads."""

    def __init__(self, settings: CaptureSettings, registered: Registry = lambda _: None) -> None:
        """`registered` returns a model's registration by its id."""
        self._registered = registered
        self._limit = 4 * settings.proxy_body_bytes
        self._key = settings.proxy_redaction_key.get_secret_value()

    def choose(self, work: Work) -> "ChosenExchange | None":
        """Read an exchange, and redact it; None if the sampling leaves it out."""
        registered = self._registered(storable_name(work.rules.model_id or work.model, "unknown"))
        work = remove_cut_bodies(work)
        if registered is not None:
            work = replace(work, registered=registered)
        reading = read_by_protocol(work, work.exchange)
        sizes = (
            len(inference.data or b"")
            + len(inference.response or b"")
            + sum(map(len, inference.metadata))
            for inference in reading.inferences
        )
        if sum(sizes) > self._limit:
            raise OverflowError("what is about all of its inferences would be written too often")
        work = _apply_named_rules(work, reading)
        rules, exchange = work.rules, work.exchange
        if not rules.capture:
            return None
        # If no path names the model, the body may: it was not read when the call was routed, and
        # `work.model` is the upstream's name then.
        is_unnamed = exchange.transport == "rest" and work.call.model is None
        model = (reading.model if is_unnamed else None) or work.model or reading.model or ""
        model_id = storable_name(rules.model_id or model, "unknown")
        is_chosen = rules.sampling.share >= 1 or is_sampled(
            rules.sampling,
            model_id=model_id,
            task_type=rules.task_type or reading.task_type,
            inferences=reading.inferences,
            standard=standard_metadata(reading, exchange, rules),
            ok=all(is_ok(exchange, reading, inference) for inference in reading.inferences),
            chance=uuid7().bytes,
        )
        if not is_chosen:
            return None
        return ChosenExchange(work, reading, model, model_id, key=self._key, limit=self._limit)


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
    if sampling.always_errors and not ok:
        return True
    value = None if sampling.key is None else _find_value(sampling.key, inferences, standard)
    token = chance if value is None else f"{sampling.key}\0{value}".encode("utf-8", "replace")
    model = model_id.encode("utf-8", "replace")
    digest = hashlib.blake2b(len(model).to_bytes(4, "big") + model + token, digest_size=8).digest()
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
    try:
        document = read_json(response)
    except UnreadableJson:
        return
    for value in walk(document):
        if isinstance(value, dict) and is_json_number(value.get("score")):
            yield float(value["score"])


_NOTHING = Redactor((), "", limit=0)  # takes nothing out
_LONGEST_ERROR = 4096
_LONGEST_WORD = 256
# About what the metadata blob of one inference takes.
_METADATA_BYTES = 2048


class ChosenExchange:
    """An exchange to publish: builds its blobs and events."""

    def __init__(
        self, work: Work, reading: Reading, model: str, model_id: str, *, key: str, limit: int
    ) -> None:
        """`model`: the name that callers use; `key`: of the redactions' hashes; `limit`: the most
        bytes of a decoded body."""
        self._work, self._model, self.model_id = work, model, model_id
        exchange, self._limit = work.exchange, limit
        redactions = self._work.rules.redactions
        self._redactor = redactor = _NOTHING
        if redactions:
            self._redactor = redactor = Redactor(redactions, key, limit=limit)
            # Data read from a redacted request cannot contain what was removed from it.
            exchange = redactor.request(exchange)
            reading = redactor.reading(read_by_protocol(work, exchange), exchange)
        self._exchange, self._reading = exchange, reading
        self._inferences = [
            replace(inference, data=None) if redactor.drops_input else inference
            for inference in reading.inferences
        ]
        gaps = *list_gaps(exchange.request, "request"), *list_gaps(exchange.response, "response")
        reasons = () if reading.problem is None else reading.problem.reasons
        self.problems = gravest([*gaps, *reasons])
        standard = standard_metadata(reading, exchange, self._work.rules)
        self._standard = redactor.metadata(standard) if redactions else standard
        self.captures = len(self._inferences)
        sizes = (len(each.data or b"") + len(each.response or b"") for each in self._inferences)
        self.size = sum(sizes) + _METADATA_BYTES * self.captures
        """About how many bytes its blobs have."""

    def lay_out(self, segment: Segment, producer: str, sequence: int) -> Draft:
        """Build its blobs and events for its place in a segment."""
        exchange = self._exchange
        draft = Draft(segment, exchange.received_at, self.captures)
        requests = build_requests(
            exchange, self._reading, self._work.rules.metadata_headers, limit=self._limit
        )
        if not self._redactor.keeps_body(exchange.transport):
            why = "a redaction removes it"
            requests = [each | {"messages": None, "why": why} for each in requests]
        captured = self._describe_capture() | {"producer": producer, "sequence": sequence}
        captured |= {"segment": segment.key} if segment.key else {}
        chosen_ids = ids_of(exchange, self._reading, self._redactor.id)
        for index, (inference, ids) in enumerate(zip(self._inferences, chosen_ids, strict=True)):
            # for what a power failure leaves of a spool
            checksum = {"response_crc32": crc32(inference.response or b"")}
            rest = {"request": requests[index], "capture": captured | checksum}
            event = self._build_inference(draft, index, inference, ids, rest)
            key = f"{self.model_id}/{ids.inference_id}".encode()
            draft.events.append(Event(sequence, key, event))
        return draft

    def _build_inference(
        self,
        draft: Draft,
        index: int,
        inference: Inference,
        ids: Ids,
        rest: Mapping[str, Any],
    ) -> bytes:
        keys = dict.fromkeys(("data_storage_key", "inference_storage_key"), "")
        if inference.data is not None:
            keys["data_storage_key"] = draft.add(index, "data", inference.data)
        if inference.response is not None:
            keys["inference_storage_key"] = draft.add(index, "response", inference.response)
        if not draft.segment.key:
            keys["metadata_storage_key"] = draft.make_key(index, "metadata")
        event = encode_event(self._build_event(index, inference, ids, draft.ids[index]) | keys)
        metadata = encode_metadata(self._standard, inference.metadata)
        blob = make_metadata_blob(metadata, event, rest)
        key = draft.add(index, "metadata", blob)
        return complete_event(
            event, metadata_key=key, metadata=metadata, response=inference.response
        )

    def _build_event(
        self, index: int, inference: Inference, ids: Ids, capture_id: str
    ) -> dict[str, Any]:
        exchange, reading, work = self._exchange, self._reading, self._work
        trace = find_trace(exchange.request_headers)
        error = inference.error or reading.error or exchange.error
        return {
            "model_id": self.model_id,
            "inference_id": ids.inference_id,
            "received_at": exchange.received_at,
            "forwarded_at": exchange.forwarded_at,
            "responded_at": exchange.responded_at,
            "schema_version": 1,
            "aliases": list(ids.aliases) or None,
            "capture_id": capture_id,
            "project_id": plain_text(work.rules.project_id, _LONGEST_WORD),
            "model_name": plain_text(self._model, _LONGEST_WORD),
            "model_version": plain_text(reading.version or work.call.version, _LONGEST_WORD),
            "task_type": plain_text(work.rules.task_type or reading.task_type, _LONGEST_WORD),
            "protocol": work.call.protocol.name,
            "action": plain_text(reading.action, _LONGEST_WORD),
            "ok": is_ok(exchange, reading, inference),
            "http_status": exchange.http_status,
            "grpc_code": exchange.grpc_code,
            "error": plain_text(error, _LONGEST_ERROR),
            "capture_problems": self.problems or None,
            "trace_id": None if trace is None else trace[1],
            "flags": ["batch_not_split"] if reading.not_split else None,
            "batch_index": index,
            "batch_size": len(self._inferences),
            **self._describe_datum(index, inference),
        }

    def _describe_datum(self, index: int, inference: Inference) -> dict[str, Any]:
        """Return the description of the datum; for a dropped one, at most its keyed hash."""
        original = self._reading.inferences[index].data
        if original is None:
            return {}
        if self._redactor.drops_input:
            return {"data_hash": self._redactor.hash_of_input(original)}
        content_type = plain_text(inference.data_content_type, _LONGEST_WORD)
        content_type = content_type or content_type_of(original)
        width, height = size_of(original, content_type)
        return {
            "data_hash": hashlib.sha256(original).hexdigest(),
            "data_size": len(original),
            "data_content_type": content_type,
            "width": width,
            "height": height,
        }

    def _describe_capture(self) -> dict[str, Any]:
        exchange = self._exchange
        return {
            "transport": exchange.transport,
            "kind": self._work.call.kind,
            "problem": plain_text(self._reading.problem, _LONGEST_ERROR),
            "request_bytes": exchange.request.size,
            "request_whole": exchange.request.whole,
            "response_bytes": exchange.response.size,
            "response_whole": exchange.response.whole,
            "response_parts": len(exchange.response.parts),
        }


def size_of(data: bytes, content_type: str) -> tuple[int, int] | tuple[None, None]:
    """Return the width and height of an image in pixels, as it is stored; (None, None) if
    unknown."""
    if not content_type.startswith("image/"):
        return None, None
    try:
        width, height = imagesize.get(BytesIO(data), exif_rotation=False)
    except Exception:  # a library reads untrusted bytes: whatever it raises, the size is unknown
        return None, None
    if not 0 < width < 2**31 or not 0 < height < 2**31:
        return None, None
    return int(width), int(height)
