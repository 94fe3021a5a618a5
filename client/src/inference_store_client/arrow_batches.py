"""Reads what Arrow IPC holds, with nanoarrow: the extra `arrow`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inference_store_client.errors import import_extra

_CURSOR: Final = "cursor"
_WARNINGS: Final = b"warnings"


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    """A column: its name, the name of its type in Arrow, and its values."""

    name: str
    type: str
    values: Sequence[Any]


def read_array(content: bytes) -> Any:
    """Return a stream of Arrow as a `nanoarrow.Array`."""
    return _import_nanoarrow().ArrayStream.from_readable(content).read_all()


def read_batch(content: bytes) -> tuple[int, str | None]:
    """Return how many rows the one batch of a stream has, and the cursor after them."""
    array = read_array(content)
    if len(array) == 0:
        return 0, None
    names = [member.name for member in array.schema.fields]
    return len(array), array.child(names.index(_CURSOR)).to_pylist()[-1]


def read_warnings(content: bytes) -> list[str]:
    """Return the warnings in the metadata of the schema."""
    metadata = _import_nanoarrow().ArrayStream.from_readable(content).schema.metadata or {}
    return list(json.loads(dict(metadata.items()).get(_WARNINGS, b"[]")))


def list_columns(content: bytes) -> list[tuple[str, str]]:
    """Return the name and the type of each column."""
    fields = _import_nanoarrow().ArrayStream.from_readable(content).schema.fields
    return [(member.name, repr(member)) for member in fields]


def iterate_columns(content: bytes) -> Iterator[ArrowColumn]:
    """Yield each column of a stream but `cursor`, its values as Python has them."""
    array = read_array(content)
    for number, member in enumerate(array.schema.fields):
        if member.name != _CURSOR:
            values = array.child(number).to_pylist()
            yield ArrowColumn(member.name, member.type.name.lower(), values)


def _import_nanoarrow() -> Any:
    return import_extra("nanoarrow", "arrow")
