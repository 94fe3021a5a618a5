"""Columns as data frames; each library is imported when it is asked for."""

from importlib import import_module
from io import BytesIO
from typing import Any, Final

from .arrow_batches import ArrowColumn, iterate_columns
from .errors import SettingsError

# Types of pandas that hold null, by those of Arrow.
_DTYPES: Final = {
    "int64": "Int64",
    "double": "float64",
    "bool": "boolean",
    "string": "string",
    "timestamp": "datetime64[us, UTC]",
}


def make_pandas(content: bytes) -> Any:
    """Return a stream of Arrow as a `pandas.DataFrame`."""
    pandas = _import("pandas")
    columns = {column.name: _make_series(pandas, column) for column in iterate_columns(content)}
    return pandas.DataFrame(columns)


def make_polars(content: bytes) -> Any:
    """Return a stream of Arrow as a `polars.DataFrame`."""
    return _import("polars").read_ipc_stream(BytesIO(content)).drop("cursor")


def _make_series(pandas: Any, column: ArrowColumn) -> Any:
    return pandas.Series(column.values, dtype=_DTYPES.get(column.type, "object"))


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise SettingsError(f"it needs {name}: install inference-store-client[{name}]") from None
