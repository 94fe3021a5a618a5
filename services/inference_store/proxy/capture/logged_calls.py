"""Calls that a request logger reports. It says neither the path nor the status of a call, and loses
headers: the bodies tell the protocol, gzip, and where the JSON before binary tensors ends.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from inference_store.inference.events import CaptureSide
from inference_store.inference.json_text import cut_members, root
from inference_store.proxy.capture.registrations import Work
from inference_store.proxy.exchange import Body, Exchange, Headers, header
from inference_store.proxy.protocols.documents import (
    JSON,
    JSON_LENGTH,
    Document,
    NotDecoded,
    is_event_stream,
    json_part,
    list_codings,
    media_type,
    read_bytes,
)
from inference_store.proxy.protocols.protocol import (
    NAMES,
    Call,
    Model,
    Problem,
    Protocol,
    Reading,
    join_problems,
)

LOGGED: Final = "logged"
"""The operation of a call that a logger reports, until its bodies tell its protocol."""
_GZIP: Final = b"\x1f\x8b"
_V1: Final = "/v1/models/{}:predict"
_CHAT: Final = "/v1/chat/completions"
# The protocol and the path of a call whose request, or else whose answer, has this member.
_BY_REQUEST: Final = {
    "inputs": ("v2", "/v2/models/{}/infer"),
    "text_input": ("v2", "/v2/models/{}/generate"),
    "instances": ("kserve-v1", _V1),
    "messages": ("openai", _CHAT),
    "prompt": ("openai", "/v1/completions"),
    "input": ("openai-embeddings", "/v1/embeddings"),
}
_BY_ANSWER: Final = {
    "outputs": _BY_REQUEST["inputs"],
    "predictions": _BY_REQUEST["instances"],
    "choices": _BY_REQUEST["messages"],
}
# What an answer says that it is.
_KINDS: Final = {
    b'"response"': ("openai-responses", "/v1/responses"),
    b'"message"': ("anthropic", "/v1/messages"),
}
_OTHER: Final = ("raw", _V1)
# V2's are lists of objects; others have such members too.
_TENSORS: Final = ("inputs", "outputs")
_OBJECTS: Final = re.compile(rb"\[\s*[{\]]")


def recognise(work: Work, protocols: Mapping[str, Protocol]) -> Work:
    """Return a logged call as one that went through the proxy, by the protocol of its bodies."""
    exchange = work.exchange
    request = _Mended(exchange.request, exchange.request_headers, "request")
    answer = _Mended(exchange.response, exchange.response_headers, "response")
    name, path = _find_protocol(request.members, answer.members)
    path = path.format(quote(work.model, safe=""))
    protocol = protocols[name]
    call = protocol.recognise("POST", path) or work.call
    problem = join_problems([request.problem, answer.problem])

    def read(exchange: Exchange, call: Call, model: Model) -> Reading:
        reading = protocol.read(exchange, call, model)
        return replace(reading, problem=join_problems([reading.problem, problem]))

    call = replace(call, protocol=replace(protocol, read=read), model=work.model)
    told = replace(exchange, path=path, request_headers=request.headers)
    return replace(work, call=call, exchange=replace(told, response_headers=answer.headers))


class _Mended:
    """A body, and its headers with those that the logger lost."""

    def __init__(self, body: Body, headers: Headers, side: CaptureSide) -> None:
        self.headers: list[tuple[str, str]] = list(headers)
        self.problem: Problem | None = None
        if body.bytes.startswith(_GZIP) and not list_codings(headers):
            coded = [*headers, ("content-encoding", "gzip")]
            if read_bytes(body, coded, side).raw.lstrip().startswith((b"{", b"[")):
                self.headers = coded
        document = read_bytes(body, self.headers, side)
        plain = b"" if document.problem else document.raw
        is_lost, length = self._find_length(plain)
        head = Document(side, plain[:length]).as_json("it")
        is_json = head.problem is None
        self.members = cut_members(head.raw) if is_json and plain.startswith(b"{") else {}
        if is_json and is_lost:
            self.headers.append((JSON_LENGTH, str(length)))
            sentence = f"the logger lost {JSON_LENGTH} of {NAMES[side]}: its JSON ends at {length}"
            self.problem = Problem(sentence, (side, "length_lost"))
        if side == "response" and length == len(plain):
            self._correct_type(plain, is_json=is_json)

    def _find_length(self, plain: bytes) -> tuple[bool, int]:
        """Return whether the logger lost the length of the JSON before binary tensors, and this
        length: what KServe's own header would say."""
        if header(self.headers, JSON_LENGTH) is None:
            may_be_lost = plain.startswith(b"{") and b'binary_data_size"' in plain
            end = root(plain).end if may_be_lost else len(plain)
            return (True, end) if plain[end:].strip() else (False, len(plain))
        try:
            return False, json_part(plain, self.headers)
        except NotDecoded:
            return False, len(plain)

    def _correct_type(self, plain: bytes, *, is_json: bool) -> None:
        """Correct the content type of an answer: KServe's logger sends that of the request."""
        kind = JSON if is_json else "text/event-stream" if is_event_stream((), plain) else ""
        if kind and media_type(self.headers) != kind:
            others = [pair for pair in self.headers if pair[0] != "content-type"]
            self.headers = [("content-type", kind), *others]


def _find_protocol(request: Mapping[str, bytes], answer: Mapping[str, bytes]) -> tuple[str, str]:
    for name in ("object", "type"):
        if answer.get(name) in _KINDS and {"messages", "input"} & (request.keys() or {"input"}):
            return _KINDS[answer[name]]
    for names, members in ((_BY_REQUEST, request), (_BY_ANSWER, answer)):
        for name in names:
            if name in members and (name not in _TENSORS or _OBJECTS.match(members[name])):
                return names[name]
    return _OTHER
