"""Answers as the ingester reads them: as they came, or in V2's JSON; and the errors in them."""

from typing import Any, Final

from inference_store.inference.json_text import Json, Number, write_json
from inference_store.proxy.exchange import Exchange

from .documents import Document, text_or_base64, written
from .protocol import MOST_ERROR

_SAID: Final = ("message", "detail", "error")


def as_it_came(answer: Document) -> bytes | None:
    """The answer's own JSON; what is none, kept whole in `{"body": …}`, which no task type mistakes
    for a prediction; None where there was no answer."""
    if not answer.raw.strip():
        return None
    return written({"body": text_or_base64(answer.raw)}) if answer.problem else answer.raw


def in_v2(outputs: list[dict[str, Any]], **said: Any) -> bytes:
    """An answer in V2's JSON; what is None is left out."""
    head = {name: value for name, value in said.items() if value is not None}
    return written({**head, "outputs": outputs})


def output(name: str, data: list[Any]) -> dict[str, Any]:
    """One output; its first dimension counts the elements of `data`."""
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


def failure(exchange: Exchange, answer: Document) -> tuple[bool | None, str | None]:
    """Whether the answer says in-band that it failed (False, else None), and the error text."""
    said = error_in(answer.value)
    if (exchange.http_status or 0) < 400:
        return (None if said is None else False), said
    text = said or _said(answer.value)
    return None, text or answer.raw[:MOST_ERROR].decode("utf-8", "replace").strip() or None


def error_in(value: Json) -> str | None:
    """The text of `{"error": …}`; None where there is none."""
    found = value.get("error") if isinstance(value, dict) else None
    return (_said(found) or write_json(found))[:MOST_ERROR] if found else None


def _said(value: Json, levels: int = 3) -> str | None:
    if isinstance(value, dict):
        found = (_said(value.get(name), levels - 1) for name in _SAID if levels)
        return next((said for said in found if said), None)
    if isinstance(value, list) and value:
        return write_json(value)[:MOST_ERROR]
    return value[:MOST_ERROR] if type(value) is str and value else None
