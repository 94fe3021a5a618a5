"""The frames to the capture process: the handshake, rules, exchanges.

A frame is a kind (one byte), the length of a head, the head in JSON, and for an exchange the parts
of its bodies as they came, one after the other; the head holds their lengths. The same rules are
sent once and then named by a number. Nothing here is evaluated: untrusted input stays bytes and
texts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from struct import Struct
from typing import Any, Final
from typing import Protocol as Shape

import orjson
from pydantic import SecretStr

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.protocol import Call, Protocol
from inference_store.proxy.rules import NamedRules, Redaction, Rules, Sampling

from .work import Work

HANDSHAKE, RULES, EXCHANGE = b"H", b"R", b"X"
_HEAD: Final = Struct(">cI")
# Rules are looked up by identity before by value: those of a route are one object.
_REMEMBERED: Final = 4096
_FIELDS: Final = tuple(
    field.name for field in fields(Exchange) if field.name not in ("request", "response")
)
_TIMES: Final = tuple(name for name in _FIELDS if name.endswith("_at"))
_HEADERS: Final = ("request_headers", "response_headers", "response_trailers")
Buffers = list[bytes]


def frame(kind: bytes, head: Mapping[str, Any]) -> bytes:
    """Return a frame without bodies."""
    raw = _json(head)
    return _HEAD.pack(kind, len(raw)) + raw


class Writer:
    """Makes frames of exchanges."""

    def __init__(self) -> None:
        self.rules: list[bytes] = []
        """The frames of all rules so far, for a process that begins."""
        self._numbers: dict[Rules, int] = {}
        self._by_identity: dict[int, tuple[Rules, int]] = {}

    def exchange(self, work: Work, reserved: int) -> Buffers:
        """Return the frame of an exchange, after that of its rules if they are new; bodies are not
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
                "call": [call.kind, call.model, call.version, call.operation],
                "request": _body(exchange.request),
                "response": _body(exchange.response),
                **{name: getattr(exchange, name) for name in _FIELDS},
            }
        )
        buffers += (_HEAD.pack(EXCHANGE, len(raw)), raw)
        buffers += exchange.request.parts
        buffers += exchange.response.parts
        return buffers

    def _number(self, rules: Rules, buffers: Buffers) -> int:
        remembered = self._by_identity.get(id(rules))
        if remembered is not None:
            return remembered[1]
        number = self._numbers.setdefault(rules, len(self._numbers))
        if number == len(self.rules):
            self.rules.append(frame(RULES, {"number": number, **asdict(rules)}))
            buffers.append(self.rules[number])
        if len(self._by_identity) >= _REMEMBERED:
            self._by_identity.clear()
        # keeps the object, so that no other gets its id
        self._by_identity[id(rules)] = (rules, number)
        return number


@dataclass(frozen=True, slots=True)
class SentExchange:
    """An exchange as it came through."""

    head: Mapping[str, Any]
    request: Sequence[bytes]
    response: Sequence[bytes]
    rules: Rules

    @property
    def reserved(self) -> int:
        """Bytes reserved for it."""
        reserved: int = self.head["reserved"]
        return reserved

    def work(self, protocols: Mapping[str, Protocol]) -> Work:
        """Return the exchange. Raises KeyError if its protocol is none of these."""
        head = self.head
        protocol = protocols[head["protocol"]]
        values = {name: head[name] for name in _FIELDS}
        values |= {name: datetime.fromisoformat(head[name]) for name in _TIMES if head[name]}
        values |= {name: [(key, value) for key, value in head[name]] for name in _HEADERS}
        request = _body_of(head["request"], self.request)
        response = _body_of(head["response"], self.response)
        exchange = Exchange(request=request, response=response, **values)
        call = Call(protocol, *head["call"])
        return Work(exchange, call, self.rules, head["model"])


class Source(Shape):
    """A buffered reader that blocks: it returns fewer bytes than requested only at the end."""

    def read(self, size: int, /) -> bytes: ...


class Reader:
    """Reads frames."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rules: dict[int, Rules] = {}

    def handshake(self) -> dict[str, Any]:
        """Return the head of the first frame. Raises EOFError if none came."""
        first = self._next()
        if first is None:
            raise EOFError("nothing came")
        return first[1]

    def exchange(self) -> SentExchange | None:
        """Return the next exchange; None if there are no more, or it did not come whole."""
        while (next_frame := self._next()) is not None:
            kind, head = next_frame
            if kind == EXCHANGE:
                request = self._parts(head["request"]["parts"])
                response = self._parts(head["response"]["parts"])
                if request is None or response is None:
                    return None
                return SentExchange(head, request, response, self._rules[head["rules"]])
            if kind == RULES:
                number = head.pop("number")
                self._rules[number] = read_rules(head)
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
        # Compare all sizes: after a part that was cut off, an empty part still has its full size.
        return parts if [len(part) for part in parts] == sizes else None


def read_rules(head: Mapping[str, Any]) -> Rules:
    """Return the rules that a frame's JSON describes."""
    by_name = (
        NamedRules(e["model"], e["version"], read_rules(e["rules"])) for e in head["by_name"]
    )
    nested = {
        "sampling": Sampling(**head["sampling"]),
        "redactions": tuple(Redaction(**redaction) for redaction in head["redactions"]),
        "if_unnamed": tuple(Redaction(**redaction) for redaction in head["if_unnamed"]),
        "metadata_headers": tuple(head["metadata_headers"]),
        "by_name": tuple(by_name),
    }
    return Rules(**{**head, **nested})


def _json(head: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(head)
    except TypeError:  # a text with a lone surrogate, which no JSON can hold
        text = json.dumps(head, ensure_ascii=False, default=datetime.isoformat)
        return text.encode("utf-8", "replace")


def _body(body: Body) -> dict[str, Any]:
    sizes = [len(part) for part in body.parts]
    return {"parts": sizes, "size": body.size, "whole": body.whole}


def _body_of(head: Mapping[str, Any], parts: Sequence[bytes]) -> Body:
    return Body(parts=parts, size=head["size"], whole=head["whole"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """The first frame."""

    settings: ProxySettings
    producer: str
    booted_at: datetime
    handed: int
    """Exchanges that were given to the processes before this one."""

    def frame(self) -> bytes:
        """Return its bytes; they contain secrets."""
        settings = {name: getattr(self.settings, name) for name in type(self.settings).model_fields}
        head = {
            "settings": orjson.Fragment(orjson.dumps(settings, default=_plain)),
            "producer": self.producer,
            "booted_at": self.booted_at,
            "handed": self.handed,
        }
        return frame(HANDSHAKE, head)


def read_handshake(reader: Reader) -> Handshake:
    """Read the first frame. Raises EOFError if none came."""
    head = reader.handshake()
    return Handshake(
        settings=ProxySettings(**{"_env_file": None, **head["settings"]}),
        producer=head["producer"],
        booted_at=datetime.fromisoformat(head["booted_at"]),
        handed=head["handed"],
    )


def _plain(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(type(value).__name__)
