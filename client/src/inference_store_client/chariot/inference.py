"""The functions of the reference system about inferences, and the store that they ask."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from inference_store_client.errors import NotFound, SettingsError
from inference_store_client.question import MOST_OF_A_PAGE
from inference_store_client.requests import make_path
from inference_store_client.sync import Store

from .models import (
    BaseInferenceFilter,
    Inference,
    NewGetInferencesRequest,
    PaginationSortDirection,
)

_STORES: list[Store] = []
"""The store that was chosen, if one was."""


def connect(url: str | None = None, key: str | None = None) -> None:
    """Choose the store; what is not given is found as `Store` finds it."""
    store = Store(url, key)
    disconnect()
    _STORES.append(store)


def disconnect() -> None:
    """Close the connections."""
    while _STORES:
        _STORES.pop().close()


def get_store() -> Store:
    """Return the store that was chosen, else that of the environment."""
    if not _STORES:
        connect()
    return _STORES[-1]


def filter_inferences(model_id: str, request_body: NewGetInferencesRequest) -> list[Inference]:
    """Return the inferences that match. `offset` is read and skipped: cursors are faster."""
    pages = request_body.pagination
    is_ascending = pages.direction == PaginationSortDirection.ASCENDING
    sort = "received_at" if is_ascending else "-received_at"
    body = request_body.filters.to_body() | {"sort": sort, "include": ["metadata"]}
    end = None if pages.limit is None else pages.offset + pages.limit
    items = islice(_read(model_id, body, end), pages.offset, end)
    return [Inference.of(item) for item in items]


get_inferences = filter_inferences


def count_inferences(model_id: str, request_body: NewGetInferencesRequest) -> int:
    """Count the inferences that match, whatever the pagination."""
    path = make_path("models", model_id, "inferences", "count")
    answer = get_store().request("POST", path, body=request_body.filters.to_body())
    return int(answer["count"])


def get_inference(model_id: str, inference_id: str, presign: bool = False) -> Inference | None:
    """Return an inference; None: there is no such inference, or no such model.

    `presign`: with a link that reads the data; it needs the right `read_inputs`.
    """
    path = make_path("models", model_id, "inferences", inference_id)
    include = "metadata,urls" if presign else "metadata"
    store = get_store()
    origin = store._transport.settings.origin
    try:
        found = Inference.of(store.request("GET", path, params={"include": include}))
    except NotFound:
        return None
    link = found.presigned_url
    # a link to the api itself is given without its address
    return found if link is None else replace(found, presigned_url=origin.make_url(link))


def bulk_delete_inferences(model_id: str, filter_: BaseInferenceFilter) -> list[str | None]:
    """Erase the inferences that match, and return their ids. Raises SettingsError without a filter.

    The store hides them, and deletes them afterwards; what a legal hold keeps stays.
    """
    if not filter_.metadata_filter:
        raise SettingsError("an empty filter would erase everything of the model: give one")
    body = filter_.to_body() | {"fields": ["uid", "inference_id"]}
    items = list(_read(model_id, body, None))
    path = make_path("models", model_id, "erasures")
    for begin in range(0, len(items), MOST_OF_A_PAGE):
        ids = [f"uid:{item['uid']}" for item in items[begin : begin + MOST_OF_A_PAGE]]
        get_store().request("POST", path, body={"inference_ids": ids})
    return [item["inference_id"] for item in items]


def _read(model_id: str, body: Mapping[str, Any], most: int | None) -> Iterator[Mapping[str, Any]]:
    """Yield the matches, page by page."""
    path = make_path("models", model_id, "inferences", "query")
    limit = MOST_OF_A_PAGE if most is None else max(1, min(most, MOST_OF_A_PAGE))
    position: Mapping[str, str] = {}
    while True:
        page = get_store().request("POST", path, body={**body, "limit": limit, **position})
        yield from page["items"]
        if page["next"] is None:
            return
        position = {"cursor": page["next"]}
