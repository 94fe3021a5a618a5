"""Taking out what must not be kept, before anything is written.

The request is redacted before it is read, so that whatever is made of it has lost the same; then
the answer, into which engines copy the caller's metadata. What cannot be read cannot be redacted:
where a rule names a part of it, it is not kept at all.
"""

import hmac
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from inference_store.proxy.base64_text import from_base64
from inference_store.proxy.exchange import Body, Exchange, Headers, header
from inference_store.proxy.metadata_header import BINARY_HEADER, utf8
from inference_store.proxy.protocols.protocol import Inference, Reading
from inference_store.proxy.rules import Redaction
from inference_store.store.json_text import Json, UnreadableJson, read_exactly, write_json

from .content_coding import decoded
from .json_paths import ELEMENTS, GONE, change_at, steps_of
from .request_headers import METADATA_HEADERS

HASHED = "hmac-sha256:"
"""What a hash in the place of a value begins with."""
_LENGTH = "inference-header-content-length"
_CHANGED = frozenset({"content-encoding", "content-length", _LENGTH})
_WRAPPINGS = 4
# What holds the datum itself over gRPC, where no path leads into what is kept of the request.
_TENSORS = (("inputs", ELEMENTS, "contents"), ("inputs", ELEMENTS, "data"), ("raw_input_contents",))
_OF_THE_INPUT = frozenset({"prompt", "prompts", "arguments"})
Hash = Callable[[bytes], str]


def keyed_hash(key: str, value: bytes) -> str:
    """HMAC-SHA-256 of a value, as it stands in the value's place."""
    return HASHED + hmac.digest(key.encode(), value, "sha256").hex()


class Redactor:
    """The redactions of a model. `key`: of the hash; where it is empty, values are dropped."""

    def __init__(self, redactions: Sequence[Redaction], key: str, *, limit: int) -> None:
        self._limit = limit
        self._hash: Hash | None = partial(keyed_hash, key) if key else None
        self._headers = {each.name.lower(): each for each in redactions if each.what == "header"}
        self._keys = {each.name: each for each in redactions if each.what == "metadata"}
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
            return replace(exchange, request_headers=headers)
        if exchange.transport == "grpc":  # no JSON: what is read of it is redacted
            return replace(exchange, request_headers=headers)
        body = self._redacted_body(exchange)
        if body is None:
            # `size` tells that there was one, and that it is not kept
            size = exchange.request.size
            return replace(
                exchange, request_headers=headers, request=Body(size=size, whole=size == 0)
            )
        return replace(
            exchange,
            request_headers=_fitting(headers, body),
            request=Body(parts=(body[0],), size=len(body[0])),
        )

    def reading(self, reading: Reading, *, transport: str) -> Reading:
        """What was read of it, without what came by headers, gRPC or the answer."""
        # No path leads into messages, so one takes the whole input.
        drops = self.drops_input or (transport == "grpc" and bool(self._paths))
        inferences = [self._inference(each, transport) for each in reading.inferences]
        if drops and not self.drops_input:
            inferences = [replace(each, data=None, metadata=()) for each in inferences]
        standard = {
            name: value
            for name, given in reading.standard.items()
            if (value := self._by_key(name, given)) is not GONE
            and not (drops and name in _OF_THE_INPUT)
        }
        return replace(reading, inferences=inferences, standard=standard)

    def keeps_body(self, transport: str) -> bool:
        """Whether the rest of the request may stand beside the metadata."""
        return not self.drops_input and not (transport == "grpc" and (self._keys or self._paths))

    def metadata(self, values: dict[str, str]) -> dict[str, str]:
        """Metadata that headers became."""
        found = {name: self._by_key(name, value) for name, value in values.items()}
        return {name: value for name, value in found.items() if value is not GONE}

    def _redacted_headers(self, headers: Headers) -> Headers:
        kept: list[tuple[str, str]] = []
        for name, value in headers:
            rule = self._headers.get(name)
            new = value if rule is None else self._changed(rule, value)
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
        found = None if raw is None else self._json(raw)
        if found is None:
            return ""
        return b64encode(found).decode() if binary else found.decode("latin-1")

    def _redacted_body(self, exchange: Exchange) -> tuple[bytes, int | None] | None:
        """The body and the length of its JSON part; None where it cannot be read."""
        if not exchange.request.whole:
            return None
        if exchange.request.size == 0:
            return b"", None
        plain = decoded(exchange.request.bytes, exchange.request_headers, limit=self._limit)
        if plain is None:
            return None
        said = header(exchange.request_headers, _LENGTH)
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
            document = self._walked(document)
        return write_json(document).encode("utf-8", "backslashreplace")

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

    def _walked(self, document: Json) -> Json:
        """All `metadata` of a document redacted, and a document that is an envelope itself."""
        waiting = [document := self._envelope(document, _WRAPPINGS)]
        while waiting:
            found = waiting.pop()
            if isinstance(found, dict):
                if "metadata" in found:
                    found["metadata"] = self._envelope(found["metadata"], _WRAPPINGS)
                waiting.extend(found.values())
            elif isinstance(found, list):
                waiting.extend(found)
        return document

    def _envelope(self, value: Json, left: int) -> Json:
        """Metadata in any of its forms: text, a list of items, sections, names and values."""
        if left and type(value) is str:
            try:
                inner = read_exactly(value)
            except UnreadableJson:
                return "" if any(key in value for key in self._keys) else value
            if isinstance(inner, (dict, list, str)):
                return write_json(self._envelope(inner, left - 1))
            return value
        if left and isinstance(value, list):
            items = [self._item(each, left - 1) for each in value]
            return [each for each in items if each is not GONE]
        if left and isinstance(value, dict):
            return self._object(value, left - 1)
        return value

    def _item(self, item: Json, left: int) -> Json:
        if isinstance(item, dict) and isinstance(item.get("key"), str):
            rule = self._keys.get(item["key"])
            if rule is None:
                return item
            new = self._changed(rule, item.get("value"))
            return GONE if new is GONE else {**item, "type": "string", "value": new}
        return self._envelope(item, left)

    def _object(self, value: dict[str, Json], left: int) -> Json:
        if "key" in value:
            item = self._item(value, left)
            return {} if item is GONE else item
        found: dict[str, Json] = {}
        for name, each in value.items():
            new = self._by_key(name, each)
            if new is GONE:
                continue
            inside = name in {"standard_metadata", "extended_metadata", "metadata"}
            found[name] = self._envelope(new, left) if inside else new
        return found

    def _by_key(self, name: str, value: Any) -> Any:
        rule = self._keys.get(name)
        return value if rule is None else self._changed(rule, value)

    def _changed(self, rule: Redaction, value: Json) -> Any:
        """A value's replacement. What is hashed already stays, for it may be read twice."""
        if rule.how == "drop" or self._hash is None or value is None:
            return GONE
        text = value if isinstance(value, str) else write_json(value)
        if text.startswith(HASHED) and len(text) == len(HASHED) + 64:
            return text
        return self._hash(text.encode("utf-8", "surrogatepass"))

    def _inference(self, inference: Inference, transport: str) -> Inference:
        changes: dict[str, Any] = {}
        if transport == "grpc" and any(map(self._reaches_tensors, self._paths)):
            changes["data"] = None
        if self._keys:
            changes["metadata"] = [
                found for each in inference.metadata if (found := self._json(each)) is not None
            ]
            changes["response"] = self._answer(inference.response)
        return replace(inference, **changes) if changes else inference

    def _answer(self, response: bytes | None) -> bytes | None:
        """The answer without copies of metadata; one that cannot be read only if it has none."""
        if response is None or not any(key.encode() in response for key in self._keys):
            return response
        return self._json(response)

    @staticmethod
    def _reaches_tensors(path: tuple[tuple[str, ...], Redaction]) -> bool:
        steps = path[0]
        return any(all(a == b for a, b in zip(steps, tensor, strict=False)) for tensor in _TENSORS)


def _fitting(headers: Headers, body: tuple[bytes, int | None]) -> Headers:
    """The headers of a body that was written anew."""
    kept = [(name, value) for name, value in headers if name not in _CHANGED]
    if body[1] is not None:
        kept.append((_LENGTH, str(body[1])))
    return [*kept, ("content-length", str(len(body[0])))]
