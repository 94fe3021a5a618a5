"""`chariot` holds what the client's `chariot` makes of the lines of the API."""

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from hypothesis import given

from inference_store.export.columns import Columns
from inference_store.export.fixed_columns import Row
from inference_store_client.chariot import Inference

from .test_part_formats import _INCLUDE, _KEYS, _PAGES, write

_LINKS = {"data": "https://bucket.example/data?X-Amz-Signature=0", "response": None}


def read_as_client(item: dict[str, Any]) -> dict[str, Any]:
    """Return an inference as the client has it, its times as the API writes them."""
    members = asdict(Inference.of(item))
    times = {
        name: None if at is None else at.isoformat(timespec="microseconds").replace("+00:00", "Z")
        for name, at in members.items()
        if isinstance(at, datetime | None) and name.endswith("_at")
    }
    return members | times


@given(_PAGES)
def test_lines_are_what_the_client_makes_of_those_of_the_api(pages: list[list[Row]]) -> None:
    columns = Columns.of(_INCLUDE, _KEYS)
    for links in (None, {**_LINKS, "metadata": None}):
        linked = [[row._replace(urls=links) for row in page] for page in pages]
        lines = write("chariot", linked, columns).splitlines()
        items = [json.loads(line) for line in write("jsonl", linked, columns).splitlines()]
        assert [json.loads(line) for line in lines] == [read_as_client(item) for item in items]
