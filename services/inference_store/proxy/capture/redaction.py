"""Taking out what must not be kept, before anything is written.

The request is redacted before it is read, so that whatever is made of it has lost the same; then
the answer, in which the values that were taken out are looked for (`taken.py`). What cannot be
read cannot be redacted: where a rule names a part of it, it is not kept at all.
"""

import hmac
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from inference_store.inference.json_text import Json, UnreadableJson, read_exactly, write_json
from inference_store.proxy.base64_text import from_base64
from inference_store.proxy.exchange import Body, Exchange, Headers, header
from inference_store.proxy.metadata_header import BINARY_HEADER, utf8
from inference_store.proxy.protocols.content_encoding import decoded
from inference_store.proxy.protocols.problems import Problem
from inference_store.proxy.protocols.protocol import Inference, Reading
from inference_store.proxy.rules import Redaction

from .json_paths import ELEMENTS, GONE, change_at, steps_of
from .metadata_keys import MetadataKeys
from .request_headers import JSON_LENGTH, METADATA_HEADERS, headers_of
from .taken import Taken

HASHED = "hmac-sha256:"
"""What a hash in the place of a value begins with."""
# What holds the datum itself over gRPC, where no path leads into what is kept of the request.
_TENSORS = (("inputs", ELEMENTS, "contents"), ("inputs", ELEMENTS, "data"), ("raw_input_contents",))
_ID = ("id",)
_OF_THE_INPUT = frozenset({"prompt", "prompts", "arguments"})
_UNREAD = "not kept: it may repeat a request that could not be read, and so not be redacted"
Hash = Callable[[bytes], str]


def keyed_hash(key: str, value: bytes) -> str:
    """HMAC-SHA-256 of a value, as it stands in the value's place."""
    return HASHED + hmac.digest(key.encode(), value, "sha256").hex()


class Redactor:
    """The redactions of one exchange: `request`, then `reading`, then `answered` and `id`.

    `key`: of the hash; where it is empty, values are dropped.
    """

    def __init__(self, redactions: Sequence[Redaction], key: str, *, limit: int) -> None:
        self._limit = limit
        self._hash: Hash | None = partial(keyed_hash, key) if key else None
        self._headers = {each.name.lower(): each for each in redactions if each.what == "header"}
        keys = {each.name: each for each in redactions if each.what == "metadata"}
        self._keys = MetadataKeys(keys, self._changed)
        self._taken = Taken()
        self._unread = False
        self._paths = [(steps_of(e.name), e) for e in redactions if e.what == "path"]
        self._input = next((each for each in redactions if each.what == "input"), None)

    @property
    def drops_input(self) -> bool:
        """Whether no datum is kept."""
        return self._input is not None

    def hash_of_input(self, data: bytes) -> str | None:
        """What is kept of a dropped datum, where a hash is."""
        if self._input is None or self._input.how == "drop" or self._hash is None:
            return None
        return self._hash(data)

    def request(self, exchange: Exchange) -> Exchange:
        """The exchange with its request redacted."""
        headers = self._redacted_headers(exchange.request_headers)
        if not (self._keys or self._paths):
            self._unread = self.drops_input and not _can_be_read(exchange, self._limit)
            return replace(exchange, request_headers=headers)
        if exchange.transport == "grpc":  # no JSON: what is read of it is redacted
            return replace(exchange, request_headers=headers)
        body = self._redacted_body(exchange)
        if body is None:
            # `size` tells that there was one, and that it is not kept
            self._unread = True
            return replace(exchange, request_headers=headers, request=exchange.request.dropped())
        return replace(
            exchange,
            request_headers=headers_of(body[0], body[1], headers),
            request=Body(parts=(body[0],), size=len(body[0])),
        )

    def reading(self, reading: Reading, exchange: Exchange) -> Reading:
        """What was read of it, without what came by headers, gRPC or the answer."""
        problem = reading.problem
        # No path leads into messages, so one takes the whole input.
        by_path = exchange.transport == "grpc" and bool(self._paths)
        drops = self.drops_input or by_path
        if drops:
            self._note_input(reading)
        if by_path:
            self._note_id(reading)
        inferences = [self._inference(each, exchange) for each in reading.inferences]
        if by_path and not self.drops_input:
            inferences = [replace(each, data=None, metadata=()) for each in inferences]
        standard = {
            name: value
            for name, given in reading.standard.items()
            if (value := self._keys.by_key(name, given)) is not GONE
            and not (drops and name in _OF_THE_INPUT)
        }
        return replace(
            reading,
            inferences=[self._answered(each, exchange) for each in inferences],
            standard=standard,
            error=self._told(reading.error, exchange),
            problem=problem and Problem(self._told(problem, exchange) or "", *problem.reasons),
        )

    def answered(self, exchange: Exchange) -> Exchange:
        """The exchange whose failure does not tell what was taken out of its request."""
        return replace(exchange, error=self._told(exchange.error, exchange))

    def id(self, name: str | None) -> str | None:
        """An id without what was taken out; None where nothing is left of it."""
        return self._taken.name(name)

    def keeps_body(self, transport: str) -> bool:
        """Whether the rest of the request may stand beside the metadata."""
        return not self.drops_input and not (transport == "grpc" and (self._keys or self._paths))

    def metadata(self, values: dict[str, str]) -> dict[str, str]:
        """Metadata that headers became."""
        found = {name: self._keys.by_key(name, value) for name, value in values.items()}
        return {name: value for name, value in found.items() if value is not GONE}

    def _redacted_headers(self, headers: Headers) -> Headers:
        kept: list[tuple[str, str]] = []
        for name, value in headers:
            rule = self._headers.get(name)
            new = value if rule is None else self._changed(rule, value)
            if rule is not None:
                # header values are latin-1: what came in UTF-8 is answered as that
                self._taken.note(utf8(value).decode("utf-8", "replace"), new)
            if new is not GONE:
                kept.append((name, new))
        if not self._keys:
            return kept
        return [(name, self._header_json(name, value)) for name, value in kept]

    def _header_json(self, name: str, value: str) -> str:
        """A header that holds metadata; header values are latin-1."""
        if name not in METADATA_HEADERS:
            return value
        binary = name == BINARY_HEADER
        raw = from_base64(value) if binary else utf8(value)
        found = None if raw is None else self._metadata(raw)
        if found is None:
            return ""
        return b64encode(found).decode() if binary else found.decode("latin-1")

    def _redacted_body(self, exchange: Exchange) -> tuple[bytes, int | None] | None:
        """The body and the length of its JSON part; None where it cannot be read."""
        if not exchange.request.whole:
            return None
        if exchange.request.size == 0:
            return b"", None
        plain = decoded(exchange.request.bytes, exchange.request_headers, self._limit)
        if plain is None:
            return None
        said = header(exchange.request_headers, JSON_LENGTH)
        if said is None:
            found = self._json(plain, paths=True)
            return None if found is None else (found, None)
        if not (said.isascii() and said.isdigit() and int(said[:12]) <= len(plain)):
            return None
        head = self._json(plain[: int(said)], paths=True)
        return None if head is None else (head + plain[int(said) :], len(head))

    def _json(self, raw: bytes, *, paths: bool = False) -> bytes | None:
        """JSON with its metadata redacted, anywhere; None where it is no JSON."""
        try:
            document = read_exactly(raw)
        except UnreadableJson:
            return self._lines(raw, paths=paths)
        if paths:
            for steps, rule in self._paths:
                change_at(document, steps, partial(self._changed, rule))
        if self._keys:
            document = self._keys.body(document)
        return write_json(document).encode("utf-8", "backslashreplace")

    def _metadata(self, raw: bytes) -> bytes | None:
        """An envelope; None where it is no JSON."""
        try:
            document = read_exactly(raw)
        except UnreadableJson:
            return None
        return write_json(self._keys.envelope(document)).encode("utf-8", "backslashreplace")

    def _lines(self, raw: bytes, *, paths: bool) -> bytes | None:
        """JSON Lines, each by itself."""
        lines = raw.splitlines()
        if len(lines) < 2:
            return None
        found: list[bytes] = []
        for line in lines:
            try:
                read_exactly(line or b"null")
            except UnreadableJson:
                return None
            found.append((self._json(line, paths=paths) or b"") if line.strip() else line)
        return b"\n".join(found)

    def _changed(self, rule: Redaction, value: Json) -> Any:
        """A value's replacement. What is hashed already stays, for it may be read twice."""
        if rule.how == "drop" or self._hash is None or value is None:
            self._taken.note(value, GONE)
            return GONE
        text = value if isinstance(value, str) else write_json(value)
        if text.startswith(HASHED) and len(text) == len(HASHED) + 64:
            return text
        new = self._hash(text.encode("utf-8", "surrogatepass"))
        self._taken.note(value, new)
        return new

    def _note_input(self, reading: Reading) -> None:
        """A datum that is a text may be repeated, too."""
        for data in (each.data or b"" for each in reading.inferences):
            with suppress(UnicodeDecodeError):
                self._taken.note(data.decode(), GONE)

    def _note_id(self, reading: Reading) -> None:
        """Where a path takes the id out: over gRPC it is no part of what is redacted."""
        names = (reading.request_id, *(each.request_id for each in reading.inferences))
        for rule in (rule for steps, rule in self._paths if steps == _ID):
            for name in filter(None, names):
                self._changed(rule, name)

    def _inference(self, inference: Inference, exchange: Exchange) -> Inference:
        changes: dict[str, Any] = {}
        if exchange.transport == "grpc":
            changes["data"] = self._data_of_grpc(inference, exchange)
        if self._keys:
            changes["metadata"] = [
                found for each in inference.metadata if (found := self._metadata(each)) is not None
            ]
            is_hidden = self._keys.are_coded_in(inference.response or b"")
            changes["response"] = None if is_hidden else self._copied_back(inference.response)
        return replace(inference, **changes) if changes else inference

    def _data_of_grpc(self, inference: Inference, exchange: Exchange) -> bytes | None:
        """Messages that nobody could read are the datum as they came; several inputs are one, with
        their parameters."""
        data = inference.data
        if any(map(self._reaches_tensors, self._paths)):
            return None
        if data is None or not self._keys or data == exchange.request.bytes:
            return None if self._keys or self._paths else data
        return self._copied_back(data) if data.startswith(b"{") else data

    def _copied_back(self, response: bytes | None) -> bytes | None:
        """JSON without copies of metadata, as it came where there are none; what cannot be read
        only if no key is in it."""
        if response is None or not self._keys.may_be_in(response):
            return response
        before = self._keys.found
        written = self._json(response)
        if written is None:
            return None if self._keys.are_in(response) else response
        return response if self._keys.found == before else written

    def _answered(self, inference: Inference, exchange: Exchange) -> Inference:
        """What was answered without the values that were taken out of what was asked."""
        response = inference.response
        if response is not None:
            response = None if self._is_untold(exchange) else self._taken.answer(response)
        error = self._told(inference.error, exchange)
        return replace(inference, response=response, error=error)

    def _told(self, text: str | None, exchange: Exchange) -> str | None:
        if text is None:
            return None
        return _UNREAD if self._is_untold(exchange) else self._taken.without(text)

    def _is_untold(self, exchange: Exchange) -> bool:
        """A failure says what is wrong with the request, in its own words."""
        return self._unread and (exchange.http_status or 500) >= 400

    @staticmethod
    def _reaches_tensors(path: tuple[tuple[str, ...], Redaction]) -> bool:
        steps = path[0]
        return any(all(a == b for a, b in zip(steps, tensor, strict=False)) for tensor in _TENSORS)


def _can_be_read(exchange: Exchange, limit: int) -> bool:
    """Whether the request's bytes are known as they were meant."""
    request, headers = exchange.request, exchange.request_headers
    if exchange.transport == "grpc" or not request.size:
        return True
    return request.whole and decoded(request.bytes, headers, limit) is not None
