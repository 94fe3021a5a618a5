"""Reads what matches the messages of a stream: the id, and the end of a request's answers."""

from dataclasses import dataclass
from typing import Final

from .wire import Message, fields_of, read_texts

_ID: Final = 3
_PARAMETERS: Final = 4
"""The same fields in ModelInferRequest and ModelInferResponse."""
_ERROR, _INFER_RESPONSE = 1, 2
"""All fields of Triton's ModelStreamInferResponse."""
_LONGEST_ID: Final = 256
_FINAL: Final = "triton_final_response"
_ASKS_FOR_FINAL: Final = "triton_enable_empty_final_response"
_TRUE, _FALSE = b"\x08\x01", b"\x08\x00"
"""An InferParameter that holds a boolean."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The id of a request, and whether it asks the server to mark the end of its answers."""

    id: str = ""
    asks_for_end: bool = False


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The id of an answer; empty if it has none."""

    id: str = ""
    is_last: bool | None = None
    """Whether its request is answered now; None if it does not say."""


def read_request(message: bytes) -> RequestHead:
    """Read the head of a ModelInferRequest; any bytes."""
    return RequestHead(_read_id(message), _read_mark(message, _ASKS_FOR_FINAL) is True)


def read_answer(message: bytes, dialect: str | None) -> AnswerHead:
    """Read the head of an answer of MLServer, or of Triton if it has only the fields of its
    message; any bytes. An error in Triton's message ends the request."""
    answer: Message = message
    is_error = False
    fields = dict(fields_of(message))
    if dialect == "triton" or (dialect is None and fields.keys() <= {_ERROR, _INFER_RESPONSE}):
        is_error = bool(fields.get(_ERROR))
        answer = fields.get(_INFER_RESPONSE, memoryview(b""))
    return AnswerHead(_read_id(answer), True if is_error else _read_mark(answer, _FINAL))


def _read_id(message: Message) -> str:
    return read_texts(message, {_ID}).get(_ID, "")[:_LONGEST_ID]


def _read_mark(message: Message, name: str) -> bool | None:
    """Return a parameter that is a boolean; None if there is none."""
    mark = None
    for number, entry in fields_of(message):
        if number == _PARAMETERS and read_texts(entry, {1}).get(1) == name:
            value = bytes(dict(fields_of(entry)).get(2, b""))
            mark = {_TRUE: True, _FALSE: False}.get(value, mark)
    return mark
