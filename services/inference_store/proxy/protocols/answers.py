"""Answers as the ingester reads them, unchanged or in V2's JSON, and the errors in them."""

from typing import Any, Final

from inference_store.inference.json_text import Json, Number, write_json
from inference_store.proxy.exchange import Exchange

from .documents import Document, text_or_base64, written
from .protocol import MOST_ERROR

_ERROR_NAMES: Final = ("message", "detail", "error")


def answer_json(answer: Document) -> bytes | None:
    """Return the answer's own JSON; another body as `{"body": …}`, which no task type mistakes for
    a prediction; None if there was no answer."""
    if not answer.raw.strip():
        return None
    return written({"body": text_or_base64(answer.raw)}) if answer.problem else answer.raw


def v2_answer_json(outputs: list[dict[str, Any]], **members: Any) -> bytes:
    """Return an answer in V2's JSON, without members that are None."""
    head = {name: value for name, value in members.items() if value is not None}
    return written({**head, "outputs": outputs})


def output(name: str, data: list[Any]) -> dict[str, Any]:
    """Return one output; its first dimension counts the elements of `data`."""
    shape: list[int] = []
    first: Json = data
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    return {"name": name, "datatype": _datatype(first), "shape": shape, "data": data}


def _datatype(scalar: Json) -> str:
    if isinstance(scalar, bool):
        return "BOOL"
    if isinstance(scalar, Number):
        return "INT64" if scalar.lstrip("-").isdecimal() else "FP64"
    return {int: "INT64", float: "FP64"}.get(type(scalar), "BYTES")


def find_failure(exchange: Exchange, answer: Document) -> tuple[bool | None, str | None]:
    """Return False if the answer reports a failure in its body, else None; and the error text."""
    error = find_error(answer.value)
    if (exchange.http_status or 0) < 400:
        return (None if error is None else False), error
    text = error or _find_text(answer.value)
    return None, text or answer.raw[:MOST_ERROR].decode("utf-8", "replace").strip() or None


def find_error(value: Json) -> str | None:
    """Return the text of `{"error": …}`; None if there is none."""
    error = value.get("error") if isinstance(value, dict) else None
    return (_find_text(error) or write_json(error))[:MOST_ERROR] if error else None


def _find_text(value: Json, levels: int = 3) -> str | None:
    if isinstance(value, dict):
        texts = (_find_text(value.get(name), levels - 1) for name in _ERROR_NAMES if levels)
        return next((text for text in texts if text), None)
    if isinstance(value, list) and value:
        return write_json(value)[:MOST_ERROR]
    return value[:MOST_ERROR] if type(value) is str and value else None
