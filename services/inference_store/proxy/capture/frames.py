"""What serving writes to the capture process: who it is, rules, exchanges.

A frame is a kind (one byte), the length of a head, the head in JSON, and of an exchange the parts
of its bodies as they came, one after the other; their lengths stand in the head. The same rules
are sent once and then named by a number. Nothing here is evaluated: what strangers sent stays
bytes and texts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from struct import Struct
from typing import Any, Final
from typing import Protocol as Shape

import orjson

from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols.protocol import Call, Protocol
from inference_store.proxy.rules import NamedRules, Redaction, Rules, Sampling

from .work import Work

HELLO, RULES, EXCHANGE = b"H", b"R", b"X"
_HEAD: Final = Struct(">cI")
# Rules are looked up by who they are before by what they say: those of a route are one object.
_REMEMBERED: Final = 4096
Buffers = list[bytes]


def frame(kind: bytes, head: Mapping[str, Any]) -> bytes:
    """A frame without bodies."""
    raw = _json(head)
    return _HEAD.pack(kind, len(raw)) + raw


class Writer:
    """Makes frames of exchanges."""

    def __init__(self) -> None:
        self.rules: list[bytes] = []
        """The frames of all rules so far, for a process that begins."""
        self._numbers: dict[Rules, int] = {}
        self._known: dict[int, tuple[Rules, int]] = {}

    def exchange(self, work: Work, reserved: int) -> Buffers:
        """The frame of an exchange, after that of its rules where they are new; bodies are not
        copied."""
        buffers: Buffers = []
        number = self._number(work.rules, buffers)
        exchange, call = work.exchange, work.call
        raw = _json(
            {
                "rules": number,
                "reserved": reserved,
                "model": work.model,
                "protocol": call.protocol.name,
                "kind": call.kind,
                "named": call.model,
                "version": call.version,
                "operation": call.operation,
                "transport": exchange.transport,
                "method": exchange.method,
                "path": exchange.path,
                "query": exchange.query,
                "request_headers": exchange.request_headers,
                "request": _body(exchange.request),
                "response_headers": exchange.response_headers,
                "response": _body(exchange.response),
                "response_trailers": exchange.response_trailers,
                "http_status": exchange.http_status,
                "grpc_code": exchange.grpc_code,
                "error": exchange.error,
                "received_at": exchange.received_at,
                "forwarded_at": exchange.forwarded_at,
                "responded_at": exchange.responded_at,
                "finished_at": exchange.finished_at,
            }
        )
        buffers += (_HEAD.pack(EXCHANGE, len(raw)), raw)
        buffers += exchange.request.parts
        buffers += exchange.response.parts
        return buffers

    def _number(self, rules: Rules, buffers: Buffers) -> int:
        known = self._known.get(id(rules))
        if known is not None:
            return known[1]
        number = self._numbers.setdefault(rules, len(self._numbers))
        if number == len(self.rules):
            self.rules.append(frame(RULES, {"number": number, **asdict(rules)}))
            buffers.append(self.rules[number])
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[id(rules)] = rules, number  # held, so that its id stays its own
        return number


@dataclass(frozen=True, slots=True)
class Sent:
    """An exchange as it came through."""

    head: Mapping[str, Any]
    request: Sequence[bytes]
    response: Sequence[bytes]
    rules: Rules

    @property
    def reserved(self) -> int:
        """Bytes reserved for it."""
        found: int = self.head["reserved"]
        return found

    def work(self, protocols: Mapping[str, Protocol]) -> Work:
        """The exchange. Raises KeyError where its protocol is none of these."""
        head = self.head
        protocol = protocols[head["protocol"]]
        exchange = Exchange(
            transport=head["transport"],
            method=head["method"],
            path=head["path"],
            query=head["query"],
            request_headers=_headers(head["request_headers"]),
            request=_body_of(head["request"], self.request),
            response_headers=_headers(head["response_headers"]),
            response=_body_of(head["response"], self.response),
            response_trailers=_headers(head["response_trailers"]),
            http_status=head["http_status"],
            grpc_code=head["grpc_code"],
            error=head["error"],
            received_at=datetime.fromisoformat(head["received_at"]),
            forwarded_at=_time(head["forwarded_at"]),
            responded_at=_time(head["responded_at"]),
            finished_at=_time(head["finished_at"]),
        )
        operation = _operation(head, protocol)
        call = Call(protocol, head["kind"], head["named"], head["version"], operation)
        return Work(exchange, call, self.rules, head["model"])


def _operation(head: Mapping[str, Any], protocol: Protocol) -> str:
    """Frames in a spool may be of a version that did not tell it."""
    if "operation" in head:
        return str(head["operation"])
    call = protocol.recognise(protocol, head["method"], head["path"])
    return "" if call is None else call.operation


class Source(Shape):
    """A buffered reader that blocks: fewer bytes than asked for come at the end alone."""

    def read(self, size: int, /) -> bytes: ...


class Reader:
    """Reads frames."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rules: dict[int, Rules] = {}

    def hello(self) -> dict[str, Any]:
        """The first frame. Raises EOFError."""
        found = self._next()
        if found is None:
            raise EOFError("nothing came")
        return found[1]

    def exchange(self) -> Sent | None:
        """The next exchange; None: there will be none, or it did not come whole."""
        while (found := self._next()) is not None:
            kind, head = found
            if kind == EXCHANGE:
                request = self._parts(head["request"]["parts"])
                response = self._parts(head["response"]["parts"])
                if request is None or response is None:
                    return None
                return Sent(head, request, response, self._rules[head["rules"]])
            if kind == RULES:
                number = head.pop("number")
                self._rules[number] = rules_from(head)
        return None

    def _next(self) -> tuple[bytes, dict[str, Any]] | None:
        start = self._source.read(_HEAD.size)
        if len(start) < _HEAD.size:
            return None
        kind, length = _HEAD.unpack(start)
        raw = self._source.read(length)
        return (kind, orjson.loads(raw)) if len(raw) == length else None

    def _parts(self, sizes: Sequence[int]) -> Sequence[bytes] | None:
        parts = [self._source.read(size) for size in sizes]
        # Each: behind one that was cut off an empty one is as long as it should be.
        return parts if [len(part) for part in parts] == sizes else None


def rules_from(told: Mapping[str, Any]) -> Rules:
    """Rules from the JSON of theirs."""
    named = (NamedRules(e["model"], e["version"], rules_from(e["rules"])) for e in told["by_name"])
    changed = {
        "sampling": Sampling(**told["sampling"]),
        "redactions": tuple(Redaction(**each) for each in told["redactions"]),
        "if_unnamed": tuple(Redaction(**each) for each in told["if_unnamed"]),
        "metadata_headers": tuple(told["metadata_headers"]),
        "by_name": tuple(named),
    }
    return Rules(**{**told, **changed})


def _json(head: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(head)
    except TypeError:  # a text with a lone surrogate, which no JSON can hold
        text = json.dumps(head, ensure_ascii=False, default=datetime.isoformat)
        return text.encode("utf-8", "replace")


def _body(body: Body) -> dict[str, Any]:
    sizes = [len(part) for part in body.parts]
    return {"parts": sizes, "size": body.size, "whole": body.whole}


def _body_of(told: Mapping[str, Any], parts: Sequence[bytes]) -> Body:
    return Body(parts=parts, size=told["size"], whole=told["whole"])


def _headers(told: Sequence[Sequence[str]]) -> Headers:
    return [(name, value) for name, value in told]


def _time(told: str | None) -> datetime | None:
    return None if told is None else datetime.fromisoformat(told)
