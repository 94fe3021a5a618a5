"""Removes what must not be kept, before anything is written.

A rule names a place in the request: it is redacted before it is read, so that everything read from
it is redacted, too. The answer loses the same metadata, parameters and id. What cannot be read, and
so not be redacted, is not kept. What a model repeats in its results, or in free text, stays.
"""

import hmac
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, AnyStr, Final
from urllib.parse import unquote_plus

from inference_store.inference import json_text
from inference_store.inference.json_text import Json, UnreadableJson, write_json
from inference_store.proxy.configuration import Redaction
from inference_store.proxy.exchange import (
    BINARY_HEADER,
    METADATA_HEADER,
    Body,
    Exchange,
    Headers,
    correct_headers,
    from_base64,
    header,
    utf8,
)
from inference_store.proxy.protocols.documents import JSON_LENGTH, NotDecoded, decode, json_part
from inference_store.proxy.protocols.protocol import Problem, Reading

_METADATA: Final = {METADATA_HEADER, BINARY_HEADER, "chariot-inference-parameters"}
NEEDED: Final = _METADATA | {"content-type", "accept", JSON_LENGTH, "grpc-encoding"}
"""Headers without which a request cannot be read: those of its body, and its metadata."""
# Whatever the configuration says. Names are split at characters that are not letters or digits.
_SECRET: Final = re.compile(
    r"authori[sz]ation|cookie|secret|passw(or)?d|credential|token(?!s)|signature|session"
    r"|api-?_?key|access-?_?key|subscription-?_?key|private-?_?key|^key$|^sig$|x-auth|assertion"
    r"|client-cert|^pw$|^pwd$|^jwt$|bearer|passphrase|license|hmac|^tokens$"
    r"|(app|functions|subscription)-?_?key$|(^|[-_.])(auth|authentication|pass|otp)$|^code$",
    re.IGNORECASE,
)
_TRACE: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def select_headers(headers: Headers, names: Collection[str]) -> list[tuple[str, str]]:
    """Return the headers with these names (lower case); never a secret."""
    return [(name, value) for name, value in headers if name in names and not _SECRET.search(name)]


def metadata_from_headers(headers: Headers, allowed: Collection[str]) -> dict[str, str]:
    """Return the allowed headers as metadata; repeated ones are joined by commas."""
    found = select_headers(headers, allowed)
    joined = {name: ", ".join(value for key, value in found if key == name) for name, _ in found}
    return {name: text[:8192].replace("\0", "\ufffd") for name, text in joined.items()}


def find_trace(headers: Headers) -> tuple[str, str] | None:
    """Return the `traceparent` and its trace id; None if there is no valid one."""
    value = (header(headers, "traceparent") or "").strip()
    match = _TRACE.fullmatch(value)
    return (value, match[1]) if match and json_text.storable(value) else None


def remove_parameters(
    query: str, is_removed: Callable[[str, str], bool] = lambda name, _: bool(_SECRET.search(name))
) -> str:
    """Return the query without some parameters: those whose names say that they hold a secret."""
    parts = ((part, *part.partition("=")[::2]) for part in re.split("[&;]", query))
    return "&".join(part for part, *pair in parts if not is_removed(*map(unquote_plus, pair)))


GONE: Final = object()  # in place of a value that is removed
# What an answer repeats: its id, and the parameters of all or of a tensor. An OpenAI server's
# answers stand within an object of ours. The names of other paths may be those of results.
_REPEATED: Final = re.compile(r"id$|(?:inputs\[\]\.)?parameters(?![^.\[])")


def parse_path(path: str) -> tuple[str, ...]:
    r"""Return the steps of a path into JSON: names between dots, `[]` for all elements of a list;
    `\.` is a dot in a name. Raises ValueError if the text is not a path."""
    steps = re.split(r"(?<!\\)\.", path.replace("[]", ".[]").removeprefix("."))
    names = [step.replace("\\.", ".") for step in steps]
    if any(name != "[]" and (not name or {*name} & {*"[]\\"}) for name in names):
        raise ValueError(f"{path!r} is not a path, like `inputs[].parameters.user`")
    return tuple(names)


def change_values(value: Json, steps: Sequence[str], change: Callable[[Json], Any]) -> Any:
    """Return JSON with every value changed that a path leads to. Of a repeated name on the way only
    the last value stays, because only that one is changed."""
    if not steps:
        return change(value)
    step, *rest = steps
    if step == "[]" and isinstance(value, list):
        items = [change_values(item, rest, change) for item in value]
        return [item for item in items if item is not GONE]
    if isinstance(value, dict) and step in value:
        members = {**value, step: change_values(value[step], rest, change)}
        return {name: member for name, member in members.items() if member is not GONE}
    return value


def _rewrite(raw: AnyStr, redact: Callable[[Json], Any]) -> AnyStr | None:
    """Return JSON redacted, unchanged if nothing is taken out; None if it cannot be read."""
    try:
        document = json_text.read_exactly(raw)
    except UnreadableJson:
        return None
    new = redact(document)
    written = write_json({} if new is GONE else new)
    if written == write_json(document):
        return raw
    return written if isinstance(raw, str) else written.encode("utf-8", "backslashreplace")


_HASHED: Final = re.compile("hmac-sha256:[0-9a-f]{64}")
_SECTIONS: Final = ("standard_metadata", "extended_metadata", "metadata")
_MOST_LEVELS: Final = 32
"""Nested lists, objects and texts of metadata that are searched: what is deeper is not kept."""
_NO_ANSWER: Final = "what cannot be read of the answer is not kept: a redaction may name it"
_QUOTE: Final = re.compile(r""", near ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


class Redactor:
    """The redactions of one exchange: `request`, then `reading`, `id` and `metadata`. Without the
    `key` of the hash, values are dropped."""

    def __init__(self, redactions: Sequence[Redaction], key: str, *, limit: int) -> None:
        self._key, self._limit = key.encode(), limit
        self._keys, headers, paths, inputs = (
            {rule.name: rule.how for rule in redactions if rule.what == what}
            for what in ("metadata", "header", "path", "input")
        )
        # headers may be metadata
        self._headers = {name.lower(): how for name, how in {**self._keys, **headers}.items()}
        self._paths = {parse_path(name): how for name, how in paths.items()}
        self._answer_paths = {
            parse_path(within + name.replace("inputs[]", "outputs[]", 1)): how
            for name, how in paths.items()
            if _REPEATED.match(name)
            for within in ("", "answer.", "chunks[].")
        }
        self._is_in_body = bool(self._keys or self._paths)
        self._is_unread = False
        self._removed: dict[str, str | None] = {}  # texts, and what stands in their place
        self._hashes_input = bool(key) and "hash" in inputs.values()
        self.drops_input = bool(inputs)  # no datum is kept

    def hash_of_input(self, data: bytes) -> str | None:
        """Return the hash of a dropped datum, if one is captured."""
        return self._hash(data) if self._hashes_input else None

    def keeps_body(self, transport: str) -> bool:
        """Return whether the rest of the request may be kept with the metadata."""
        return not (self.drops_input or (transport == "grpc" and self._is_in_body))

    def id(self, name: str | None) -> str | None:
        """Return an id, or what replaces it; None if it was dropped."""
        return None if name is None else self._removed.get(name, name)

    def metadata(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return names and values of metadata, redacted."""
        for name, how in self._keys.items():
            values = change_values(values, (name,), partial(self._replace, how))
        return values

    def request(self, exchange: Exchange) -> Exchange:
        """Return the exchange with its request redacted; over gRPC, where no path leads into
        messages, what is read of it is redacted."""
        headers, request = self._redact_headers(exchange.request_headers), exchange.request
        if self._is_in_body and exchange.transport == "rest":
            body = self._redact_body(request, headers)
            self._is_unread = body is None
            request, headers = body or (request.dropped(), headers)
        names = {*self._keys, *self._headers}
        query = remove_parameters(exchange.query, lambda n, v: n in names or v in self._removed)
        return replace(exchange, request_headers=headers, request=request, query=query)

    def reading(self, reading: Reading, exchange: Exchange) -> Reading:
        """Return the redacted reading, without what came by headers, gRPC or the answer."""
        is_grpc, problem, items = exchange.transport == "grpc", reading.problem, reading.inferences
        by_path = is_grpc and bool(self._paths)
        if is_grpc and self._is_in_body and (whole := exchange.request.bytes):
            # messages that cannot be read are the datum
            self._is_unread = any(item.data == whole for item in items)
        if by_path and (how := self._paths.get(("id",))):
            self._replace(how, reading.request_id)
        failed = exchange.grpc_code != 0 if is_grpc else (exchange.http_status or 500) >= 400
        hides = self._is_unread and failed  # they may quote the request
        is_odd = problem is not None and any(side == "response" for side, _ in problem.reasons)
        inferences = [
            replace(
                item,
                data=self._redact_data(item.data) if is_grpc else item.data,
                metadata=() if by_path else self._redact_envelopes(item.metadata),
                response=None if hides else self._redact_answer(item.response, is_odd=is_odd),
                error=self._redact_error(item.error, hides=hides),
            )
            for item in items
        ]
        if is_odd and problem and self._is_in_body:
            problem = Problem(f"{_QUOTE.sub('', problem)}; {_NO_ANSWER}", *problem.reasons)
        error = reading.error or exchange.error or reading.error  # empty is a failure, too
        hidden = ("prompt", "prompts", "arguments") if self.drops_input or by_path else ()
        return replace(
            reading,
            inferences=inferences,
            standard={name: it for name, it in reading.standard.items() if name not in hidden},
            problem=problem,
            error=self._redact_error(error, hides=hides),
        )

    def _redact_headers(self, headers: Headers) -> Headers:
        redacted: list[tuple[str, str]] = []
        for name, value in headers:
            new = self._replace(self._headers[name], value) if name in self._headers else value
            if new is not GONE and self._keys and name in _METADATA:
                is_binary = name == BINARY_HEADER
                raw = (from_base64 if is_binary else utf8)(new) or b""
                written = _rewrite(raw, self._redact_metadata) or b""
                new = b64encode(written).decode() if is_binary else written.decode("latin-1")
            redacted += [] if new is GONE else [(name, new)]
        return redacted

    def _redact_body(self, body: Body, headers: Headers) -> tuple[Body, Headers] | None:
        try:
            plain = decode(body.bytes, headers, self._limit)
            length = json_part(plain, headers)
        except NotDecoded:
            return None
        head = self._redact_json(plain[:length], self._paths) if length else b""
        if head is None or not body.whole:
            return None
        plain = head + plain[length:]
        remaining = [pair for pair in headers if pair[0] != "content-encoding"]
        lengths = {"content-length": str(len(plain)), JSON_LENGTH: str(len(head))}
        return Body(parts=(plain,), size=len(plain)), correct_headers(remaining, lengths)

    def _redact_json(self, raw: bytes, paths: Mapping[tuple[str, ...], str]) -> bytes | None:
        """Redact JSON, or each line of JSON Lines; None if it is not JSON."""
        redact = partial(self._redact_document, paths)
        if (whole := _rewrite(raw, redact)) is not None:
            return whole
        lines = [_rewrite(line, redact) for line in raw.splitlines() if line.strip()]
        return None if None in lines else b"\n".join(filter(None, lines))

    def _redact_document(self, paths: Mapping[tuple[str, ...], str], document: Json) -> Any:
        """Redact a body: by path, all metadata in it, and itself, which may be metadata."""
        for steps, how in paths.items():
            document = change_values(document, steps, partial(self._replace, how))
        if not self._keys:
            return document
        depth = None if isinstance(document, dict) else 0
        return self._redact_metadata(self.metadata(document), depth)

    def _redact_data(self, data: bytes | None) -> bytes | None:
        """Redact the datum of a gRPC request, which may be the JSON of its tensors."""
        is_gone = self._is_unread or self._paths or data is None
        return None if is_gone else self._redact_json(data or b"", {}) or data

    def _redact_envelopes(self, envelopes: Sequence[bytes]) -> Sequence[bytes]:
        redacted = (_rewrite(envelope, self._redact_metadata) for envelope in envelopes)
        return [*filter(None, redacted)] if self._keys else envelopes

    def _redact_answer(self, raw: bytes | None, *, is_odd: bool) -> bytes | None:
        """Redact an answer; None if it cannot be read. `is_odd`: a part of it could not be."""
        if raw is None or not (self._keys or self._answer_paths):
            return raw
        text = json_text.text_of(raw)
        names = {*self._keys, "\\u", *(max(steps, key=len) for steps in self._answer_paths)}
        if not is_odd and not any(name in text for name in names):
            return raw  # far faster
        is_unread = is_odd and ('"body"' in text or '"unread"' in text)
        return None if is_unread else self._redact_json(raw, self._answer_paths)

    def _redact_error(self, error: str | None, *, hides: bool) -> str | None:
        quotes = error and (hides or any(text and text in error for text in self._removed))
        return "not kept: it may repeat what a redaction takes out" if quotes else error

    def _hash(self, value: bytes) -> str:
        return "hmac-sha256:" + hmac.digest(self._key, value, "sha256").hex()

    def _replace(self, how: str, value: Json) -> Any:
        """Return a value's replacement. A hash stays, because a value may be read twice."""
        if value is None:
            return GONE
        text = value if isinstance(value, str) else write_json(value)
        if how == "drop" or not self._key:
            self._removed.setdefault(text, None)
            return GONE
        if _HASHED.fullmatch(text):
            return text
        return self._removed.setdefault(text, self._hash(text.encode("utf-8", "surrogatepass")))

    def _redact_metadata(self, value: Json, depth: int | None = 0) -> Any:
        """Return metadata in any form without the keys; GONE if it is an item that is removed.
        `depth`: None if only sections of the value are metadata."""
        inside = None if depth is None else depth + 1
        if (inside or 0) > _MOST_LEVELS and not json_text.is_json_number(value):
            return ""
        if type(value) is str and inside:
            text = _rewrite(value, partial(self._redact_metadata, depth=inside))
            is_json = text is not None or (depth and value.lstrip()[:1] not in ("{", "["))
            is_lost = not is_json and any(key in value for key in self._keys)
            return "" if is_lost else text or value
        if isinstance(value, list):
            items = [self._redact_metadata(item, inside) for item in value]
            return [item for item in items if item is not GONE]
        if not isinstance(value, dict):
            return value
        if depth is not None and isinstance(value.get("key"), str) and value["key"] in self._keys:
            new = self._replace(self._keys[value["key"]], value.get("value"))
            return GONE if new is GONE else {**value, "type": "string", "value": new}
        members = value if depth is None else self.metadata(value)
        changed = {
            name: self._redact_metadata(member, inside or (0 if name in _SECTIONS else None))
            for name, member in members.items()
        }
        return {name: {} if new is GONE else new for name, new in changed.items()}
