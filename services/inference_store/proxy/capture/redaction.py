"""Removes what must not be kept, before anything is written.

The request is redacted before it is read, so that everything read from it is redacted, too. The
answer loses the same metadata and parameters, which model servers repeat, and the same id. What
cannot be read is not kept if a rule names a part of it. Free text of an answer is not searched.
"""

import hmac
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_plus

from inference_store.inference.json_text import (
    Json,
    UnreadableJson,
    read_exactly,
    storable,
    text_of,
    write_json,
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
from inference_store.proxy.protocols.documents import decoded, list_codings, walk
from inference_store.proxy.protocols.protocol import Inference, Problem, Reading, join_problems
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


# Paths into JSON.

Change: TypeAlias = Callable[[Json], Any]
"""Returns a value's replacement; GONE if it is removed."""
GONE: Final = object()
ELEMENTS: Final = "[]"
Steps: TypeAlias = tuple[str, ...]
"""Names, and ELEMENTS for all elements of an array."""
_STEP = re.compile(r'"((?:[^"\\]|\\.)*)"|([^.\[\]"]+)|(\[\])|(\.)')


def parse_path(path: str) -> Steps:
    """Return the steps of a path. A name with dots is written in double quotes. Raises ValueError
    if the text is not a path."""
    steps: list[str] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise ValueError(f"{path!r} is not a path: character {at} cannot be read")
        quoted, name, elements, _ = match.groups()
        if quoted is not None:
            steps.append(re.sub(r"\\(.)", r"\1", quoted))
        elif name or elements:
            steps.append(name or elements)
        at = match.end()
    if not steps:
        raise ValueError("a path has at least one name")
    return tuple(steps)


def change_values(value: Json, steps: Sequence[str], change: Change) -> Json:
    """Return JSON with every value changed that a path leads to. Of a repeated name on the way only
    the last value stays, because only that one is changed."""
    if not steps:
        return change(value)
    step, *rest = steps
    if step == ELEMENTS and isinstance(value, list):
        items = [change_values(item, rest, change) for item in value]
        return [item for item in items if item is not GONE]
    if isinstance(value, dict) and step in value:
        members = {**value, step: change_values(value[step], rest, change)}
        return {name: member for name, member in members.items() if member is not GONE}
    return value


def _find_place_in_answer(steps: Steps) -> Steps | None:
    """Return where an answer repeats what a path leads to: its id, and the parameters of all or of
    a tensor; None for another path, whose names may be those of results."""
    if steps[:3] == ("inputs", ELEMENTS, "parameters"):
        return ("outputs", *steps[1:])
    return steps if steps == _ID or steps[0] == "parameters" else None


_ANSWERS: Final = ((), ("answer",), ("chunks", ELEMENTS))
"""Where answers stand in what is kept of them: an OpenAI server's are within another object."""


HASHED = "hmac-sha256:"
"""The prefix of a hash that replaces a value."""
_ID = ("id",)
_OF_THE_INPUT = frozenset({"prompt", "prompts", "arguments"})
_NO_ANSWER = Problem(
    "the answer is not kept: its coding cannot be undone, and so nothing taken out of it",
    ("response", "unreadable"),
)
_NOT_JSON = Problem(
    "the answer is not kept: it is not JSON, and has the name of something that is taken out",
    ("response", "unreadable"),
)
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
# What a problem quotes of a text that cannot be read.
_NEAR = re.compile(r""", near ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
_UNREAD = "not kept: it may repeat a request that could not be read, and so not be redacted"


def keyed_hash(key: str, value: bytes) -> str:
    """Return the HMAC-SHA-256 of a value, as it is written instead of the value."""
    return HASHED + hmac.digest(key.encode(), value, "sha256").hex()


class Redactor:
    """The redactions of one exchange: `request`, then `reading` and `id`.

    `key`: the key of the hash; if it is empty, values are dropped.
    """

    def __init__(self, redactions: Sequence[Redaction], key: str, *, limit: int) -> None:
        self._limit = limit
        self._hash: Callable[[bytes], str] | None = partial(keyed_hash, key) if key else None
        self._headers = {rule.name.lower(): rule for rule in redactions if rule.what == "header"}
        keys = {rule.name: rule for rule in redactions if rule.what == "metadata"}
        self._keys = MetadataKeys({name: partial(self._replace, keys[name]) for name in keys})
        self._paths: list[tuple[Steps, Change]] = [
            (parse_path(rule.name), partial(self._replace, rule))
            for rule in redactions
            if rule.what == "path"
        ]
        self._answer_paths = [
            (within + place, change)
            for steps, change in self._paths
            if (place := _find_place_in_answer(steps)) is not None
            for within in _ANSWERS
        ]
        last = [[step for step in path if step != ELEMENTS][-1] for path, _ in self._answer_paths]
        self._names = {*keys, *last}
        self._input = next((rule for rule in redactions if rule.what == "input"), None)
        self._removed: dict[str, str | None] = {}
        """Texts that were replaced, and by what; None if nothing stands in their place."""
        self._is_unread = False

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
        if exchange.transport == "grpc" or not (self._keys or self._paths):
            # gRPC is not JSON: what is read from it is redacted
            return replace(exchange, request_headers=headers)
        body = self._redact_body(exchange)
        if body is None:
            # `size` shows that there was a body, and that it is not kept
            self._is_unread = True
            return replace(exchange, request_headers=headers, request=exchange.request.dropped())
        return replace(
            exchange,
            request_headers=headers_of(body[0], body[1], headers),
            request=Body(parts=(body[0],), size=len(body[0])),
        )

    def reading(self, reading: Reading, exchange: Exchange) -> Reading:
        """Return the redacted reading, without what came by headers, gRPC or the answer."""
        # No path leads into messages, so a path removes the whole input.
        by_path = exchange.transport == "grpc" and bool(self._paths)
        if by_path:
            self._redact_id(reading)
        redacts = bool(self._keys or self._paths)
        if exchange.transport == "grpc" and redacts and exchange.request.size:
            # messages that cannot be read are the datum
            whole = exchange.request.bytes
            self._is_unread = any(item.data == whole for item in reading.inferences)
        inferences = [self._redact_inference(item, exchange) for item in reading.inferences]
        inferences, why = self._keep_answers(inferences, exchange)
        problem, error = reading.problem, reading.error
        if problem is not None and self._names:
            problem = Problem(_NEAR.sub("", problem), *problem.reasons)
        problem = join_problems([why, problem])
        is_grpc, code = exchange.transport == "grpc", exchange.grpc_code
        failed = code != 0 if is_grpc else (exchange.http_status or 500) >= 400
        if self._is_unread and failed:  # it may quote the request
            inferences = [replace(item, response=None, error=None) for item in inferences]
            error = _UNREAD
        drops = self.drops_input or by_path
        standard = {
            name: value
            for name, value in self._keys.redact_names(reading.standard).items()
            if not (drops and name in _OF_THE_INPUT)
        }
        return replace(
            reading, inferences=inferences, standard=standard, problem=problem, error=error
        )

    def id(self, name: str | None) -> str | None:
        """Return an id, or what replaces it; None if it was dropped."""
        return None if name is None else self._removed.get(name, name)

    def keeps_body(self, transport: str) -> bool:
        """Return whether the rest of the request may be kept with the metadata."""
        return not self.drops_input and not (transport == "grpc" and (self._keys or self._paths))

    def metadata(self, values: dict[str, str]) -> dict[str, str]:
        """Return metadata that were headers, redacted."""
        return self._keys.redact_names(values)

    def _redact_headers(self, headers: Headers) -> Headers:
        remaining: list[tuple[str, str]] = []
        for name, value in headers:
            rule = self._headers.get(name)
            new = value if rule is None else self._replace(rule, value)
            if new is not GONE:
                is_metadata = bool(self._keys) and name in METADATA_HEADERS
                remaining.append((name, self._redact_header(name, new) if is_metadata else new))
        return remaining

    def _redact_header(self, name: str, value: str) -> str:
        """Redact a header that holds metadata; header values are latin-1."""
        binary = name == BINARY_HEADER
        raw = from_base64(value) if binary else utf8(value)
        redacted = None if raw is None else _rewrite(raw, self._keys.redact)
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
            redacted = self._redact_json(plain, self._paths)
            return None if redacted is None else (redacted, None)
        if not (length.isascii() and length.isdigit() and int(length[:12]) <= len(plain)):
            return None
        head = self._redact_json(plain[: int(length)], self._paths)
        return None if head is None else (head + plain[int(length) :], len(head))

    def _redact_json(self, raw: bytes, paths: Sequence[tuple[Steps, Change]]) -> bytes | None:
        """Redact JSON, or each line of JSON Lines; None if it is not JSON."""

        def redact(document: Json) -> Json:
            for steps, change in paths:
                document = change_values(document, steps, change)
            return self._keys.redact_body(document) if self._keys else document

        whole = _rewrite(raw, redact)
        lines = raw.splitlines()
        if whole is not None or len(lines) < 2:
            return whole
        redacted = [_rewrite(line, redact) if line.strip() else line for line in lines]
        written = [line for line in redacted if line is not None]
        return b"\n".join(written) if len(written) == len(lines) else None

    def _redact_read(self, raw: bytes | None) -> bytes | None:
        """Redact an answer, or the datum of a gRPC request: unchanged if nothing is taken out of
        it; None if it is no JSON and has one of the names in quotes."""
        if raw is None or not (self._names and self._finds_name(raw)):
            return raw
        written = self._redact_json(raw, self._answer_paths)
        unchanged = written is not None and written == _rewrite(raw, lambda document: document)
        return raw if unchanged else written

    def _replace(self, rule: Redaction, value: Json) -> Any:
        """Return a value's replacement. A hash stays, because a value may be read twice."""
        text = value if isinstance(value, str) else write_json(value)
        if rule.how == "drop" or self._hash is None or value is None:
            self._removed.setdefault(text, None)
            return GONE
        if text.startswith(HASHED) and len(text) == len(HASHED) + 64:
            return text
        return self._removed.setdefault(text, self._hash(text.encode("utf-8", "surrogatepass")))

    def _redact_id(self, reading: Reading) -> None:
        """Redact the id if a path names it: over gRPC the request that holds it is not redacted."""
        names = (reading.request_id, *(inference.request_id for inference in reading.inferences))
        for change in (change for steps, change in self._paths if steps == _ID):
            for name in filter(None, names):
                change(name)

    def _redact_inference(self, inference: Inference, exchange: Exchange) -> Inference:
        data, metadata = inference.data, inference.metadata
        if exchange.transport == "grpc" and self._paths:
            data, metadata = None, ()
        elif exchange.transport == "grpc" and self._keys:
            data = None if self._is_unread else self._redact_read(data)
        if self._keys:
            redacted = [_rewrite(envelope, self._keys.redact) for envelope in metadata]
            metadata = [envelope for envelope in redacted if envelope is not None]
        response = self._redact_read(inference.response)
        return replace(inference, data=data, metadata=metadata, response=response)

    def _keep_answers(
        self, inferences: Sequence[Inference], exchange: Exchange
    ) -> tuple[list[Inference], Problem | None]:
        """Return the inferences without answers in which no place can be found, and the reason."""
        answer, headers = exchange.response, exchange.response_headers
        if exchange.transport == "grpc" or not (answer.size and self._names):
            return list(inferences), None
        is_coded = bool(list_codings(headers))
        raw = decoded(answer.bytes, headers) if is_coded else answer.bytes
        if raw is None or (is_coded and not answer.whole):
            return [replace(inference, response=None) for inference in inferences], _NO_ANSWER
        if not self._quotes(text_of(raw)):
            return list(inferences), None
        length = header(headers, JSON_LENGTH) or ""
        head = raw[: int(length[:12])] if length.isascii() and length.isdigit() else raw
        if _rewrite(head, lambda document: document) is not None:
            return list(inferences), None
        # chunks and lines were read one by one, and redacted; the others stand as one text
        kept = [
            replace(inference, response=None) if self._hides(inference.response) else inference
            for inference in inferences
        ]
        return kept, None if kept == list(inferences) else _NOT_JSON

    def _hides(self, response: bytes | None) -> bool:
        try:
            values = [*walk(read_exactly(response or b"null"))]
        except UnreadableJson:
            return True
        texts = [value for value in values if isinstance(value, str)]
        # bytes that are no text stand as base64
        decoded_texts = (from_base64(text) or b"" for text in texts)
        return any(map(self._quotes, texts)) or any(map(self._finds_name, decoded_texts))

    def _finds_name(self, raw: bytes) -> bool:
        """Return whether bytes quote one of the names: as a text, or as texts between lengths.

        Lengths look like UTF-32.
        """
        return any(map(self._quotes, (text_of(raw), raw.decode("utf-8", "replace"))))

    def _quotes(self, text: str) -> bool:
        """Return whether a text has one of the names in quotes, as JSON has it at any depth."""
        plain = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
        plain = plain.replace("\\", "").replace("\0", "")
        return any(f'"{name}"' in plain for name in self._names)


def _rewrite(raw: bytes, redact: Change) -> bytes | None:
    """Return JSON with its document redacted; None if it is not JSON."""
    try:
        document = read_exactly(raw)
    except UnreadableJson:
        return None
    return write_json(redact(document)).encode("utf-8", "backslashreplace")


# Removes metadata keys from metadata in any form: text, a list of items, sections, names and
# values; anywhere in a body, at any depth.

_SECTIONS = frozenset({"standard_metadata", "extended_metadata", "metadata"})
# Nested lists, objects and strings: what is nested deeper is not searched, and so not kept. Nobody
# reads metadata that deep.
_MOST_LEVELS = 32


class MetadataKeys:
    """The keys that some rules name, each with what replaces its values."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def __bool__(self) -> bool:
        return bool(self._changes)

    def redact_body(self, document: Json) -> Json:
        """Redact a body: all metadata in it, and the body itself, which may be metadata."""
        if not isinstance(document, dict):
            return self._redact_inside(self.redact(document))
        return self._redact_inside(self.redact_names(document))

    def redact(self, metadata: Json) -> Json:
        """Redact metadata that are not in a body."""
        new = self._redact(metadata, _MOST_LEVELS)
        return {} if new is GONE else new

    def redact_value(self, name: str, value: Any) -> Any:
        """Return the redacted value of a key; GONE if it is removed."""
        change = self._changes.get(name)
        return value if change is None else change(value)

    def _redact_inside(self, value: Json) -> Json:
        if isinstance(value, list):
            return [self._redact_inside(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            name: self.redact(member) if name in _SECTIONS else self._redact_inside(member)
            for name, member in value.items()
        }

    def _redact(self, value: Json, levels: int, *, is_named: bool = False) -> Any:
        """Return metadata redacted; GONE if they are one item that is removed. `is_named`: it is
        the value of another key, of which a text that is no JSON stays."""
        if type(value) is str:
            return self._redact_text(value, levels, is_named=is_named)
        if not isinstance(value, (list, dict)):
            return value
        if levels <= 0:
            return ""
        if isinstance(value, list):
            items = [self._redact(item, levels - 1) for item in value]
            return [item for item in items if item is not GONE]
        if isinstance(value.get("key"), str):
            return self._redact_item(value, levels - 1)
        members = {
            name: self._redact(member, levels - 1, is_named=name not in _SECTIONS)
            for name, member in self.redact_names(value).items()
        }
        return {name: {} if new is GONE else new for name, new in members.items()}

    def redact_names(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return names and values, redacted."""
        members = {name: self.redact_value(name, member) for name, member in value.items()}
        return {name: new for name, new in members.items() if new is not GONE}

    def _redact_item(self, item: dict[str, Json], levels: int) -> Any:
        if item["key"] in self._changes:
            new = self.redact_value(item["key"], item.get("value"))
            return GONE if new is GONE else {**item, "type": "string", "value": new}
        if "value" not in item:
            return {**item}
        return {**item, "value": self._redact(item["value"], levels, is_named=True)}

    def _redact_text(self, text: str, levels: int, *, is_named: bool) -> str:
        try:
            inner = read_exactly(text)
        except UnreadableJson:
            holds_key = not is_named and any(key in text for key in self._changes)
            return "" if holds_key else text
        if type(inner) is not str and not isinstance(inner, (dict, list)):
            return text
        if levels <= 0:
            return ""
        new = self._redact(inner, levels - 1, is_named=is_named)
        written = write_json({} if new is GONE else new)
        return text if written == write_json(inner) else written
