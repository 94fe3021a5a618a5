"""Reads what models did in production from an Inference Store."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from inference_store_client.errors import StoreWarning

from .blob import Blob
from .errors import (
    Conflict,
    ConnectionFailed,
    ExportFailed,
    FilterError,
    Forbidden,
    Gone,
    InvalidRequest,
    NotFound,
    NotIncluded,
    Redirected,
    Refused,
    SettingsError,
    SignInFailed,
    StoreError,
    StreamIncomplete,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
from .filters import (
    Filter,
    a_contained_by,
    a_contains,
    a_equals,
    a_overlaps,
    accenti,
    bbox,
    casei,
    count_predictions,
    distance,
    div,
    duration,
    field,
    interval,
    meta,
    now,
    point,
    polygon,
    predicted,
    prediction,
    s_disjoint,
    s_intersects,
    s_within,
    sent,
)
from .retries import Retries
from .sync import Export, Inference, Inferences, Model, Store

if TYPE_CHECKING:
    from .asynchronous import AsyncExport, AsyncInference, AsyncInferences, AsyncModel, AsyncStore

__all__ = [
    "AsyncExport",
    "AsyncInference",
    "AsyncInferences",
    "AsyncModel",
    "AsyncStore",
    "Blob",
    "Conflict",
    "ConnectionFailed",
    "Export",
    "ExportFailed",
    "Filter",
    "FilterError",
    "Forbidden",
    "Gone",
    "Inference",
    "Inferences",
    "InvalidRequest",
    "Model",
    "NotFound",
    "NotIncluded",
    "Redirected",
    "Refused",
    "Retries",
    "SettingsError",
    "SignInFailed",
    "Store",
    "StoreError",
    "StoreWarning",
    "StreamIncomplete",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "a_contained_by",
    "a_contains",
    "a_equals",
    "a_overlaps",
    "accenti",
    "bbox",
    "casei",
    "count_predictions",
    "distance",
    "div",
    "duration",
    "field",
    "interval",
    "meta",
    "now",
    "point",
    "polygon",
    "predicted",
    "prediction",
    "s_disjoint",
    "s_intersects",
    "s_within",
    "sent",
]


def __getattr__(name: str) -> Any:
    """Import the asynchronous half when it is used: a notebook does not wait for it."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.asynchronous"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
