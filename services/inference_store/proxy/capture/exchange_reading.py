"""Reads an exchange: by its protocol, and by its headers."""

from dataclasses import replace
from typing import Any

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.metadata_header import from_header
from inference_store.proxy.protocols.problems import Reason, list_gaps
from inference_store.proxy.protocols.protocol import Inference, Model, Reading
from inference_store.proxy.rules import Rules, find_rules

from .request_headers import find_trace, metadata_from_headers
from .work import Work


def read_by_protocol(work: Work, exchange: Exchange) -> Reading:
    """Read an exchange by its protocol, redacted or not; at least one inference."""
    rules = work.rules
    model = Model(
        task_type=rules.task_type or work.registered.task_type,
        batched=rules.batched or work.registered.batched,
        dialect=rules.dialect,
    )
    reading = work.call.protocol.read(exchange, work.call, model)
    # A header's metadata are about every inference; what the body says of one wins.
    envelope = from_header(exchange.request_headers)
    added = () if envelope is None else (envelope,)
    inferences_read = reading.inferences or (Inference(),)
    if not added and inferences_read is reading.inferences:
        return reading
    inferences = [
        replace(inference, metadata=(*added, *inference.metadata)) for inference in inferences_read
    ]
    return replace(reading, inferences=inferences)


def count_written_bytes(reading: Reading) -> int:
    """Return how many bytes would be written: data about all inferences is written with each."""
    return sum(
        len(inference.data or b"")
        + len(inference.response or b"")
        + sum(map(len, inference.metadata))
        for inference in reading.inferences
    )


def apply_named_rules(work: Work, reading: Reading) -> Work:
    """Return the exchange with the rules of the model's name, if only the body names the model."""
    if not work.rules.by_name:
        return work
    name = reading.model or ""
    rules = find_rules(work.rules.by_name, name, reading.version) if name else None
    if rules is None:  # it is unknown whose rules apply
        return replace(work, rules=replace(work.rules, redactions=work.rules.if_unnamed))
    return replace(work, rules=rules, model=name)


def standard_metadata(reading: Reading, exchange: Exchange, rules: Rules) -> dict[str, Any]:
    """Return the standard metadata: those the protocol reads, and those of headers."""
    trace = find_trace(exchange.request_headers)
    standard = dict(reading.standard)
    standard |= metadata_from_headers(exchange.request_headers, rules.metadata_headers)
    return standard if trace is None else standard | {"traceparent": trace[0]}


def list_problems(reading: Reading, exchange: Exchange) -> list[Reason]:
    """Return the problems of a capture: what is missing from its bodies, and what was not read."""
    reasons = [] if reading.problem is None else list(reading.problem.reasons)
    return [
        *list_gaps(exchange.request, "request"),
        *list_gaps(exchange.response, "response"),
        *reasons,
    ]


def is_ok(exchange: Exchange, reading: Reading, inference: Inference) -> bool:
    """Return whether an inference succeeded: by its own statement, else its answer's, else its
    status."""
    stated = inference.ok if inference.ok is not None else reading.ok
    if exchange.error is not None or exchange.grpc_code:
        return False
    if exchange.transport == "rest" and not 200 <= (exchange.http_status or 0) < 400:
        return False
    if exchange.transport == "grpc" and exchange.grpc_code is None:
        return False
    return stated is not False
