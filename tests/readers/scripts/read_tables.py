"""Read one answer as Arrow with each library: read_tables.py ARROW URL MODEL.

Prints, as JSON, the rows by the name of the reader: null is null, and times are texts.
"""

import json
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pandas
import polars
import pyarrow
import pyarrow.csv
import pyarrow.ipc

from inference_store_client import Store


def read_by_pyarrow(path: str) -> Any:
    return pyarrow.ipc.open_stream(path).read_all().to_pylist()


def read_by_polars(path: str) -> Any:
    return polars.read_ipc_stream(path).to_dicts()


def _list_rows(frame: pandas.DataFrame) -> Any:
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _make_plain(value: Any) -> Any:
    """Return a value as JSON has it. NaN would be a null that was read as a number."""
    if value is None or value is pandas.NA or value is pandas.NaT:
        return None
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("there is a NaN, and the store sent none")
    if isinstance(value, dict):
        return {name: _make_plain(member) for name, member in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [*map(_make_plain, value)] if isinstance(value, list) else value


_OF_ARROW: Final[dict[str, Callable[[str], Any]]] = {
    "pyarrow": read_by_pyarrow,
    "polars": read_by_polars,
}


def read_by_client(url: str, model: str) -> dict[str, Any]:
    """Return the rows of the client's own tables."""
    with Store(url) as store:
        inferences = store.model(model).inferences().sort("received_at")
        return {
            "to_arrow": pyarrow.table(inferences.to_arrow()).to_pylist(),
            "to_pandas": _list_rows(inferences.to_pandas()),
            "to_polars": inferences.to_polars().to_dicts(),
        }


def main(arrow: str, url: str, model: str) -> None:
    tables = {name: read(arrow) for name, read in _OF_ARROW.items()}
    tables |= read_by_client(url, model)
    print(json.dumps(_make_plain(tables)))


if __name__ == "__main__":
    main(*sys.argv[1:])
