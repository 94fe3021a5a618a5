"""Removes what must not be kept, before anything is written.

The request is redacted before it is read, so that everything read from it is redacted, too; then
the answer, which is searched for the removed values (`removed_values.py`). What cannot be read is
not kept if a rule names a part of it.
"""

import hmac
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote_plus

from inference_store.inference.json_text import (
    Json,
    UnreadableJson,
    read_exactly,
    storable,
    write_json,
)
from inference_store.proxy.capture.removed_values import (
    GONE,
    Change,
    RemovedValues,
    change_values,
    encode_in_codings,
    find_base64_bytes,
    parse_path,
)
from inference_store.proxy.configuration import Redaction
from inference_store.proxy.exchange import (
    BINARY_HEADER,
    METADATA_HEADER,
    Body,
    Exchange,
    Headers,
    from_base64,
    header,
    utf8,
)
from inference_store.proxy.protocols.documents import decoded
from inference_store.proxy.protocols.protocol import Inference, Problem, Reading
from inference_store.proxy.protocols.v2 import JSON_LENGTH

# Selects the headers of a request to keep, as metadata or to send it again; never a secret.

METADATA_HEADERS = frozenset({METADATA_HEADER, BINARY_HEADER, "chariot-inference-parameters"})
"""Headers that hold the caller's metadata."""
_OF_THE_LENGTH = frozenset({"content-encoding", "content-length", JSON_LENGTH})
# Headers that are needed to read the body.
_NEEDED = frozenset({"content-type", "accept", JSON_LENGTH, "grpc-encoding"}) | METADATA_HEADERS
# Whatever the configuration says. Names are split at characters that are not letters or digits.
_SECRET = re.compile(
    r"authori[sz]ation|cookie|secret|passw(or)?d|credential|token(?!s)|signature|session"
    r"|api-?_?key|access-?_?key|subscription-?_?key|private-?_?key|^key$|^sig$|x-auth|assertion"
    r"|client-cert|^pw$|^pwd$|^jwt$|bearer|passphrase|license|hmac|^tokens$"
    r"|(app|functions|subscription)-?_?key$|(^|[-_.])(auth|authentication|pass|otp)$|^code$",
    re.IGNORECASE,
)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_NO_TRACE = "0" * 32
_LONGEST = 8192


def is_secret(name: str) -> bool:
    """Return whether the name of a header or a query parameter says that it holds a secret."""
    return _SECRET.search(name) is not None


def select_headers(headers: Headers, allowed: Sequence[str]) -> list[list[str]]:
    """Return the headers to store with the request: those allowed, or needed to send it again."""
    names = _NEEDED | {name.lower() for name in allowed}
    return [[name, value] for name, value in headers if name in names and not is_secret(name)]


def metadata_from_headers(headers: Headers, allowed: Sequence[str]) -> dict[str, str]:
    """Return the allowed headers as metadata; repeated ones are joined by commas."""
    metadata: dict[str, str] = {}
    names = {name.lower() for name in allowed}
    for name, value in headers:
        if name in names and not is_secret(name):
            text = value[:_LONGEST].replace("\0", "\ufffd")
            metadata[name] = f"{metadata[name]}, {text}" if name in metadata else text
    return metadata


def find_trace(headers: Headers) -> tuple[str, str] | None:
    """Return the `traceparent` and its trace id; None if there is no valid one."""
    value = header(headers, "traceparent")
    match = None if value is None else _TRACEPARENT.fullmatch(value.strip())
    if value is None or match is None or match[1] == _NO_TRACE or not storable(value):
        return None
    return value.strip(), match[1]


def remove_secrets(query: str) -> str:
    """Return the query without parameters whose names say that they hold a secret."""
    if not query:
        return ""
    parts = re.split("[&;]", query)
    return "&".join(part for part in parts if not is_secret(unquote_plus(part.split("=", 1)[0])))


def headers_of(body: bytes, json_length: int | None, headers: Headers) -> Headers:
    """Return the headers of a rewritten body; `json_length`: the length of the JSON before
    tensors."""
    remaining = [(name, value) for name, value in headers if name not in _OF_THE_LENGTH]
    if json_length is not None:
        remaining.append((JSON_LENGTH, str(json_length)))
    return [*remaining, ("content-length", str(len(body)))]


HASHED = "hmac-sha256:"
"""The prefix of a hash that replaces a value."""
_ID = ("id",)
_OF_THE_INPUT = frozenset({"prompt", "prompts", "arguments"})
_UNREAD = "not kept: it may repeat a request that could not be read, and so not be redacted"
Hash = Callable[[bytes], str]


def keyed_hash(key: str, value: bytes) -> str:
    """Return the HMAC-SHA-256 of a value, as it is written instead of the value."""
    return HASHED + hmac.digest(key.encode(), value, "sha256").hex()


class Redactor:
    """The redactions of one exchange: `request`, then `reading`, then `answered` and `id`.

    `key`: the key of the hash; if it is empty, values are dropped.
    """

    def __init__(self, redactions: Sequence[Redaction], key: str, *, limit: int) -> None:
        self._limit = limit
        self._hash: Hash | None = partial(keyed_hash, key) if key else None
        self._headers = {rule.name.lower(): rule for rule in redactions if rule.what == "header"}
        keys = {rule.name: rule for rule in redactions if rule.what == "metadata"}
        self._keys = MetadataKeys(keys, self._replace)
        self._removed = RemovedValues()
        self._unread = False
        self._paths = [(parse_path(rule.name), rule) for rule in redactions if rule.what == "path"]
        self._input = next((rule for rule in redactions if rule.what == "input"), None)

    @property
    def drops_input(self) -> bool:
        """True if no datum is kept."""
        return self._input is not None

    def hash_of_input(self, data: bytes) -> str | None:
        """Return the hash of a dropped datum, if one is captured."""
        if self._input is None or self._input.how == "drop" or self._hash is None:
            return None
        return self._hash(data)

    def request(self, exchange: Exchange) -> Exchange:
        """Return the exchange with its request redacted."""
        headers = self._redact_headers(exchange.request_headers)
        if not (self._keys or self._paths):
            self._unread = self.drops_input and not _can_be_read(exchange, self._limit)
            return replace(exchange, request_headers=headers)
        if exchange.transport == "grpc":  # not JSON: what is read from it is redacted
            return replace(exchange, request_headers=headers)
        body = self._redact_body(exchange)
        if body is None:
            # `size` shows that there was a body, and that it is not kept
            self._unread = True
            return replace(exchange, request_headers=headers, request=exchange.request.dropped())
        return replace(
            exchange,
            request_headers=headers_of(body[0], body[1], headers),
            request=Body(parts=(body[0],), size=len(body[0])),
        )

    def reading(self, reading: Reading, exchange: Exchange) -> Reading:
        """Return the redacted reading, without what came by headers, gRPC or the answer."""
        problem = reading.problem
        # No path leads into messages, so a path removes the whole input.
        by_path = exchange.transport == "grpc" and bool(self._paths)
        drops = self.drops_input or by_path
        if drops:
            self._note_input(reading)
        if by_path:
            self._redact_id(reading)
        inferences = [self._redact_inference(item, exchange) for item in reading.inferences]
        if by_path and not self.drops_input:
            inferences = [replace(inference, data=None, metadata=()) for inference in inferences]
        standard = {
            name: value
            for name, original in reading.standard.items()
            if (value := self._keys.redact_value(name, original)) is not GONE
            and not (drops and name in _OF_THE_INPUT)
        }
        return replace(
            reading,
            inferences=[self._redact_answer(inference, exchange) for inference in inferences],
            standard=standard,
            error=self._clean(reading.error, exchange),
            problem=problem and Problem(self._clean(problem, exchange) or "", *problem.reasons),
        )

    def answered(self, exchange: Exchange) -> Exchange:
        """Return the exchange with its error text redacted."""
        return replace(exchange, error=self._clean(exchange.error, exchange))

    def id(self, name: str | None) -> str | None:
        """Return an id without removed values; None if nothing is left of it."""
        return self._removed.name(name)

    def keeps_body(self, transport: str) -> bool:
        """Return whether the rest of the request may be kept with the metadata."""
        return not self.drops_input and not (transport == "grpc" and (self._keys or self._paths))

    def metadata(self, values: dict[str, str]) -> dict[str, str]:
        """Return metadata that were headers, redacted."""
        redacted = {name: self._keys.redact_value(name, value) for name, value in values.items()}
        return {name: value for name, value in redacted.items() if value is not GONE}

    def _redact_headers(self, headers: Headers) -> Headers:
        remaining: list[tuple[str, str]] = []
        for name, value in headers:
            rule = self._headers.get(name)
            new = value if rule is None else self._replace(rule, value)
            if rule is not None:
                # header values are latin-1: a value that came in UTF-8 is answered in UTF-8
                self._removed.note(utf8(value).decode("utf-8", "replace"), new)
            if new is not GONE:
                remaining.append((name, new))
        if not self._keys:
            return remaining
        return [(name, self._redact_header_json(name, value)) for name, value in remaining]

    def _redact_header_json(self, name: str, value: str) -> str:
        """Redact a header that holds metadata; header values are latin-1."""
        if name not in METADATA_HEADERS:
            return value
        binary = name == BINARY_HEADER
        raw = from_base64(value) if binary else utf8(value)
        redacted = None if raw is None else self._redact_envelope(raw)
        if redacted is None:
            return ""
        return b64encode(redacted).decode() if binary else redacted.decode("latin-1")

    def _redact_body(self, exchange: Exchange) -> tuple[bytes, int | None] | None:
        """Return the redacted body and the length of its JSON part; None if it cannot be read."""
        if not exchange.request.whole:
            return None
        if exchange.request.size == 0:
            return b"", None
        plain = decoded(exchange.request.bytes, exchange.request_headers, self._limit)
        if plain is None:
            return None
        length = header(exchange.request_headers, JSON_LENGTH)
        if length is None:
            redacted = self._redact_json(plain, paths=True)
            return None if redacted is None else (redacted, None)
        if not (length.isascii() and length.isdigit() and int(length[:12]) <= len(plain)):
            return None
        head = self._redact_json(plain[: int(length)], paths=True)
        return None if head is None else (head + plain[int(length) :], len(head))

    def _redact_json(self, raw: bytes, *, paths: bool = False) -> bytes | None:
        """Redact metadata anywhere in JSON, or in each line of JSON Lines; None if it is not
        JSON."""

        def redact(document: Json) -> Json:
            for steps, rule in self._paths if paths else ():
                change_values(document, steps, partial(self._replace, rule))
            return self._keys.redact_body(document) if self._keys else document

        whole = _rewrite(raw, redact)
        lines = raw.splitlines()
        if whole is not None or len(lines) < 2:
            return whole
        redacted = [_rewrite(line, redact) if line.strip() else line for line in lines]
        written = [line for line in redacted if line is not None]
        return b"\n".join(written) if len(written) == len(lines) else None

    def _redact_envelope(self, raw: bytes) -> bytes | None:
        """Redact an envelope; None if it is not JSON."""
        return _rewrite(raw, self._keys.redact_envelope)

    def _replace(self, rule: Redaction, value: Json) -> Any:
        """Return a value's replacement. A hash stays, because a value may be read twice."""
        if rule.how == "drop" or self._hash is None or value is None:
            self._removed.note(value, GONE)
            return GONE
        text = value if isinstance(value, str) else write_json(value)
        if text.startswith(HASHED) and len(text) == len(HASHED) + 64:
            return text
        new = self._hash(text.encode("utf-8", "surrogatepass"))
        self._removed.note(value, new)
        return new

    def _note_input(self, reading: Reading) -> None:
        """Note data that are texts: an answer may repeat them, too."""
        for data in (inference.data or b"" for inference in reading.inferences):
            with suppress(UnicodeDecodeError):
                self._removed.note(data.decode(), GONE)

    def _redact_id(self, reading: Reading) -> None:
        """Redact the id if a path names it: over gRPC the request that holds it is not redacted."""
        names = (reading.request_id, *(inference.request_id for inference in reading.inferences))
        for rule in (rule for steps, rule in self._paths if steps == _ID):
            for name in filter(None, names):
                self._replace(rule, name)

    def _redact_inference(self, inference: Inference, exchange: Exchange) -> Inference:
        changes: dict[str, Any] = {}
        if exchange.transport == "grpc":
            changes["data"] = self._data_of_grpc(inference, exchange)
        if self._keys:
            changes["metadata"] = [
                redacted
                for envelope in inference.metadata
                if (redacted := self._redact_envelope(envelope)) is not None
            ]
            is_hidden = self._keys.are_coded_in(inference.response or b"")
            changes["response"] = None if is_hidden else self._redact_copies(inference.response)
        return replace(inference, **changes) if changes else inference

    def _data_of_grpc(self, inference: Inference, exchange: Exchange) -> bytes | None:
        """Return the redacted datum of a gRPC request; unreadable messages are one unchanged."""
        data = inference.data
        if data is None or self._paths or (self._keys and data == exchange.request.bytes):
            return None
        return self._redact_copies(data) if self._keys and data.startswith(b"{") else data

    def _redact_copies(self, response: bytes | None) -> bytes | None:
        """Redact copies of metadata in JSON; drop unreadable bytes that contain a key."""
        if response is None or not self._keys.may_be_in(response):
            return response
        before = self._keys.removed_count
        written = self._redact_json(response)
        if written is None:
            return None if self._keys.are_in(response) else response
        return response if self._keys.removed_count == before else written

    def _redact_answer(self, inference: Inference, exchange: Exchange) -> Inference:
        response = inference.response
        if response is not None:
            response = None if self._must_hide(exchange) else self._removed.answer(response)
        error = self._clean(inference.error, exchange)
        return replace(inference, response=response, error=error)

    def _clean(self, text: str | None, exchange: Exchange) -> str | None:
        if text is None:
            return None
        return _UNREAD if self._must_hide(exchange) else self._removed.replace_in_text(text)

    def _must_hide(self, exchange: Exchange) -> bool:
        """Return whether an error may quote a request that could not be redacted."""
        return self._unread and (exchange.http_status or 500) >= 400


def _rewrite(raw: bytes, redact: Change) -> bytes | None:
    """Return JSON with its document redacted; None if it is not JSON."""
    try:
        document = read_exactly(raw)
    except UnreadableJson:
        return None
    return write_json(redact(document)).encode("utf-8", "backslashreplace")


def _can_be_read(exchange: Exchange, limit: int) -> bool:
    request, headers = exchange.request, exchange.request_headers
    if exchange.transport == "grpc" or not request.size:
        return True
    return request.whole and decoded(request.bytes, headers, limit) is not None


# Removes metadata keys from metadata in any form: text, a list of items, sections, names and
# values; anywhere in a body, at any depth.

_SECTIONS = frozenset({"standard_metadata", "extended_metadata", "metadata"})
# Nested lists, objects and strings: what is nested deeper is not searched, and so not kept. Nobody
# reads metadata that deep.
_MOST_LEVELS = 32
_BEGIN_JSON = ("{", "[", '"')


class MetadataKeys:
    """The keys that some rules name. `changed` returns the replacement of a value."""

    def __init__(self, rules: Mapping[str, Redaction], changed: Any) -> None:
        self._changes: dict[str, Change] = {
            name: partial(changed, rule) for name, rule in rules.items()
        }
        self.removed_count = 0
        """How many values were removed."""

    def __bool__(self) -> bool:
        return bool(self._changes)

    def are_in(self, raw: bytes) -> bool:
        """Return whether one of the keys is in these bytes, unescaped."""
        return any(key.encode() in raw for key in self._changes)

    def may_be_in(self, raw: bytes) -> bool:
        """Return whether one of the keys is in these bytes, or may be as a JSON escape."""
        return b"\\u" in raw or self.are_in(raw)

    def are_coded_in(self, raw: bytes) -> bool:
        """Return whether one of the keys is a name in bytes that stand in JSON as base64."""
        names = b"|".join(
            re.escape(coded) for key in self._changes for coded in encode_in_codings(key)
        )
        written = re.compile(b'"(?:' + names + rb')"\s*[:,}]')
        return any(written.search(decoded) for decoded in find_base64_bytes(raw))

    def redact_body(self, document: Json) -> Json:
        """Redact a body: all `metadata` in it, and the body itself if it is metadata."""
        if not isinstance(document, dict):
            document = self.redact_envelope(document)
        else:
            document = self._redact_object(document, _MOST_LEVELS, is_body=True)
        waiting = [document]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                waiting.extend(member for name, member in value.items() if name not in _SECTIONS)
                if "metadata" in value:
                    value["metadata"] = self.redact_envelope(value["metadata"])
            elif isinstance(value, list):
                waiting.extend(value)
        return document

    def redact_envelope(self, value: Json) -> Json:
        """Redact metadata that are not in a body."""
        return self._redact_envelope(value, _MOST_LEVELS)

    def redact_value(self, name: str, value: Any) -> Any:
        """Return the redacted value of a key; GONE if it is removed."""
        change = self._changes.get(name)
        if change is None:
            return value
        self.removed_count += 1
        return change(value)

    def _remove(self) -> str:
        self.removed_count += 1
        return ""

    def _redact_envelope(self, value: Json, levels: int) -> Json:
        if type(value) is str:
            return self._redact_text(value, levels)
        if isinstance(value, (list, dict)) and levels <= 0:
            return self._remove()
        if isinstance(value, list):
            items = [self._redact_item(item, levels - 1) for item in value]
            return [item for item in items if item is not GONE]
        return self._redact_object(value, levels - 1) if isinstance(value, dict) else value

    def _redact_text(self, value: str, levels: int) -> str:
        try:
            inner = read_exactly(value)
        except UnreadableJson:
            return self._remove() if any(key in value for key in self._changes) else value
        if not isinstance(inner, (dict, list, str)):
            return value
        return (
            write_json(self._redact_envelope(inner, levels - 1)) if levels > 0 else self._remove()
        )

    def _redact_item(self, item: Json, levels: int) -> Json:
        if isinstance(item, dict) and isinstance(item.get("key"), str):
            if item["key"] not in self._changes:
                redacted = (
                    {"value": self._redact_inner(item["value"], levels)} if "value" in item else {}
                )
                return item | redacted
            new = self.redact_value(item["key"], item.get("value"))
            return GONE if new is GONE else {**item, "type": "string", "value": new}
        return self._redact_envelope(item, levels)

    def _redact_object(self, value: dict[str, Json], levels: int, *, is_body: bool = False) -> Json:
        if "key" in value and not is_body:
            item = self._redact_item(value, levels)
            return {} if item is GONE else item
        members: dict[str, Json] = {}
        for name, member in value.items():
            new = self.redact_value(name, member)
            if new is GONE:
                continue
            if name in _SECTIONS:
                new = self._redact_envelope(new, levels)
            elif not is_body and name not in self._changes:
                new = self._redact_inner(new, levels)
            members[name] = new
        return members

    def _redact_inner(self, value: Json, levels: int) -> Json:
        """Redact the value of another key, which may contain metadata; unchanged if it does not."""
        if isinstance(value, (dict, list)):
            return self._redact_envelope(value, levels)
        if type(value) is not str or not value.lstrip().startswith(_BEGIN_JSON):
            return value
        try:
            inner = read_exactly(value)
        except UnreadableJson:
            return value
        if levels <= 0:
            return self._remove()
        new = self._redact_envelope(inner, levels - 1) if isinstance(inner, (dict, list)) else inner
        return value if new == inner else write_json(new)
