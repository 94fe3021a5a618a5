"""Columns as data frames; each library is imported when it is asked for."""

from io import BytesIO
from typing import Any, Final

from .arrow_batches import ArrowColumn, iterate_columns
from .extras import import_extra

_LIBRARIES: Final = {"arrow": "nanoarrow", "pandas": "pandas", "polars": "polars"}
# Types of pandas that hold null, by those of Arrow.
_DTYPES: Final = {
    "int64": "Int64",
    "double": "float64",
    "bool": "boolean",
    "string": "string",
    "timestamp": "datetime64[us, UTC]",
}


def require_frames(extra: str) -> None:
    """Raise SettingsError if the library of a data frame is missing: before anything is asked."""
    for module in dict.fromkeys(("nanoarrow", _LIBRARIES[extra])):
        import_extra(module, extra)


def make_pandas(content: bytes) -> Any:
    """Return a stream of Arrow as a `pandas.DataFrame`."""
    pandas = import_extra("pandas", "pandas")
    columns = {column.name: _make_series(pandas, column) for column in iterate_columns(content)}
    return pandas.DataFrame(columns)


def make_polars(content: bytes) -> Any:
    """Return a stream of Arrow as a `polars.DataFrame`."""
    return import_extra("polars", "polars").read_ipc_stream(BytesIO(content)).drop("cursor")


def _make_series(pandas: Any, column: ArrowColumn) -> Any:
    return pandas.Series(column.values, dtype=_DTYPES.get(column.type, "object"))
