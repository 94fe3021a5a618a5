"""CloudEvents of request loggers (KServe's, Seldon's), over HTTP: in binary mode the attributes are
headers and the body is the data; in structured mode both are one JSON document; a batch is a list
of those.

A logger sends one event for a request and one for its answer. KServe gives both the same id, and
Seldon the same `requestid`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

from inference_store.inference.events import CaptureSide
from inference_store.inference.json_text import UnreadableJson, cut_items, cut_members, read_json
from inference_store.proxy.exchange import Headers, from_base64, header, utf8
from inference_store.proxy.protocols import documents

STRUCTURED: Final = "application/cloudevents"
"""How the content type of structured mode and of a batch begins."""
_TYPE: Final = re.compile(r".+\.inference\.(request|response)")
# What both halves of a call have in common, beside its id.
_ORIGIN: Final = ("source", "inferenceservicename", "modelid", "namespace", "component", "endpoint")
_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
_CLOCK: Final = timedelta(hours=1)


class Refused(Exception):
    """An event is not taken; `field` names what is wrong, `str()` of the error why."""

    def __init__(
        self, field: str, sentence: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST
    ) -> None:
        super().__init__(sentence)
        self.field, self.status = field, status


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """A request or an answer, as a logger sent it."""

    side: CaptureSide
    attributes: Mapping[str, str]
    """Names in lower case, without `ce-`."""
    at: datetime | None = None
    content: Headers = ()
    """The headers of the data."""
    data: bytes = field(default=b"", repr=False)
    """Empty in binary mode: it is the body."""

    @property
    def id(self) -> str:
        """The id of the call that both of its halves have."""
        return self.attributes.get("requestid") or self.attributes["id"]

    @property
    def call(self) -> tuple[str, ...]:
        """The name of the call, which is the same for both of its halves."""
        return (self.id, *(self.attributes.get(name, "") for name in _ORIGIN))

    @property
    def model(self) -> str:
        """The inference service, and the node of its graph if that has another name."""
        service, node = (self.attributes.get(name) or "" for name in _ORIGIN[1:3])
        return f"{service}.{node}" if service and node and node != service else service or node

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers for the request of the call: those that the logger was told to send as metadata,
        and the attributes as `ce-…`."""
        listed = _read_metadata(self.attributes.get("metadata", ""))
        if "traceparent" in self.attributes and header(listed, "traceparent") is None:
            listed.append(("traceparent", self.attributes["traceparent"]))
        attributes = (pair for pair in self.attributes.items() if pair[0] != "metadata")
        return listed + [(f"ce-{name}", _as_header(value)) for name, value in attributes]

    def time(self, arrived: datetime) -> datetime:
        """Return when it happened; when it arrived, if that is not said, or cannot be."""
        at = self.at or arrived
        return at if _EARLIEST <= at <= arrived + _CLOCK else arrived


def read_binary(headers: Headers) -> LoggedEvent:
    """Read an event in binary mode, whose data are the body. Raises Refused."""
    attributes: dict[str, str] = {}
    for spelt, value in headers:
        if spelt.startswith("ce-"):
            name, text = spelt.removeprefix("ce-"), utf8(value).decode("utf-8", "replace")
            attributes[name] = text if name == "metadata" else unquote(text)
    content = [it for it in headers if it[0] in ("content-type", "content-encoding")]
    return _check(attributes, content, b"", "ce-")


def cut_documents(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the JSON of an event in structured mode, or of each in a batch, with its place there.
    Raises Refused."""
    try:
        text = documents.utf8(raw)
        is_batch = isinstance(read_json(text), list)
    except UnreadableJson as exc:
        raise Refused("body", f"it is not JSON: {exc}") from None
    for at, each in enumerate(cut_items(text) if is_batch else [text]):
        yield f"[{at}]." if is_batch else "", each


def read_structured(where: str, text: bytes) -> LoggedEvent:
    """Read an event in structured mode. `where`: its place in a batch. Raises Refused."""
    members = cut_members(text)
    values = {name: members.pop(name, None) for name in ("data", "data_base64")}
    attributes = {name: _read_attribute(f"{where}{name}", it) for name, it in members.items()}
    kind = attributes.get("datacontenttype") or "application/json"
    data, coded = values["data"] or b"", values["data_base64"]
    if coded is not None:
        plain = from_base64(_read_attribute(f"{where}data_base64", coded))
        if plain is None and coded != b'""':
            raise Refused(f"{where}data_base64", "it is not base64")
        data = plain or b""
    elif data.startswith(b'"') and not kind.partition(";")[0].strip().lower().endswith("json"):
        data = str(read_json(data)).encode("utf-8", "backslashreplace")
    return _check(attributes, [("content-type", _as_header(kind))], data, where)


def _read_attribute(name: str, text: bytes) -> str:
    value = read_json(text)
    if isinstance(value, dict | list):
        raise Refused(name, "expected a text")
    return value if type(value) is str else "" if value is None else text.decode()


def _check(attributes: Mapping[str, str], content: Headers, data: bytes, where: str) -> LoggedEvent:
    """Return the event. `where`: what errors write before the names of its attributes."""
    if attributes.get("specversion") != "1.0":
        raise Refused(f"{where}specversion", "expected a CloudEvent, whose specversion is 1.0")
    for name in ("id", "source", "type"):
        if not attributes.get(name):
            raise Refused(f"{where}{name}", "every CloudEvent has one")
    match = _TYPE.fullmatch(attributes["type"])
    if match is None:
        raise Refused(f"{where}type", "expected ….inference.request or ….inference.response")
    side: CaptureSide = "request" if match[1] == "request" else "response"
    event = LoggedEvent(side, attributes, _read_time(attributes, where), content, data)
    if not event.model:
        raise Refused(f"{where}inferenceservicename", "expected one, or a modelid")
    return event


def _read_time(attributes: Mapping[str, str], where: str) -> datetime | None:
    text = attributes.get("time")
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else None
    except (ValueError, OverflowError):
        raise Refused(f"{where}time", "expected a time as in RFC 3339") from None


def _read_metadata(text: str) -> list[tuple[str, str]]:
    """Return the headers in KServe's `{"Name": ["value"]}`; none of anything else."""
    for spelt in (text, unquote(text)):  # KServe does not escape it, others do
        try:
            named = read_json(spelt)
        except UnreadableJson:
            continue
        pairs = named.items() if isinstance(named, dict) else ()
        return [
            (name.lower(), _as_header(value))
            for name, values in pairs
            for value in (values if isinstance(values, list) else [values])
            if type(value) is str
        ]
    return []


def _as_header(text: str) -> str:
    """Return a text as the value of a header: its bytes as latin-1."""
    return text.encode("utf-8", "backslashreplace").decode("latin-1")
