"""What an exchange says: by its protocol, and by its headers."""

from dataclasses import replace
from typing import Any

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.metadata_header import from_header
from inference_store.proxy.protocols.problems import Reason, lacks
from inference_store.proxy.protocols.protocol import Inference, Model, Reading
from inference_store.proxy.rules import Rules, rules_of

from .request_headers import header_metadata, trace_of
from .work import Work


def read_by_protocol(work: Work, exchange: Exchange) -> Reading:
    """What the protocol reads in an exchange, redacted or not; at least one inference."""
    rules = work.rules
    model = Model(
        task_type=rules.task_type or work.registered.task_type,
        batched=rules.batched or work.registered.batched,
        dialect=rules.dialect,
    )
    reading = work.call.protocol.read(exchange, work.call, model)
    # A header's metadata are about every inference; what the body says of one wins.
    given = from_header(exchange.request_headers)
    added = () if given is None else (given,)
    found = reading.inferences or (Inference(),)
    if not added and found is reading.inferences:
        return reading
    inferences = [replace(each, metadata=(*added, *each.metadata)) for each in found]
    return replace(reading, inferences=inferences)


def written_bytes(reading: Reading) -> int:
    """How much would be written: what is about all inferences is written with each."""
    return sum(
        len(each.data or b"") + len(each.response or b"") + sum(map(len, each.metadata))
        for each in reading.inferences
    )


def by_its_name(work: Work, reading: Reading) -> Work:
    """The exchange by the model's name, where only the body says it."""
    if not work.rules.by_name:
        return work
    name = reading.model or ""
    named = rules_of(work.rules.by_name, name, reading.version) if name else None
    if named is None:  # nobody knows whose rules would count
        return replace(work, rules=replace(work.rules, redactions=work.rules.if_unnamed))
    return replace(work, rules=named, model=name)


def standard_of(reading: Reading, exchange: Exchange, rules: Rules) -> dict[str, Any]:
    """Standard metadata: what the protocol knows, and what came by headers."""
    trace = trace_of(exchange.request_headers)
    found = dict(reading.standard)
    found |= header_metadata(exchange.request_headers, rules.metadata_headers)
    return found if trace is None else found | {"traceparent": trace[0]}


def reasons_of(reading: Reading, exchange: Exchange) -> list[Reason]:
    """What is wrong with a capture: what is missing of its bodies, and what was not read."""
    found = [] if reading.problem is None else list(reading.problem.reasons)
    return [*lacks(exchange.request, "request"), *lacks(exchange.response, "response"), *found]


def is_ok(exchange: Exchange, reading: Reading, inference: Inference) -> bool:
    """Whether an inference succeeded: as it says itself, else its answer, else its status."""
    said = inference.ok if inference.ok is not None else reading.ok
    if exchange.error is not None or exchange.grpc_code:
        return False
    if exchange.transport == "rest" and not 200 <= (exchange.http_status or 0) < 400:
        return False
    if exchange.transport == "grpc" and exchange.grpc_code is None:
        return False
    return said is not False
