"""Reads what models did in production from an Inference Store."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .blob import Blob as Blob
from .errors import Conflict as Conflict
from .errors import ConnectionFailed as ConnectionFailed
from .errors import ExportFailed as ExportFailed
from .errors import FilterError as FilterError
from .errors import Forbidden as Forbidden
from .errors import Gone as Gone
from .errors import InvalidRequest as InvalidRequest
from .errors import NotFound as NotFound
from .errors import NotIncluded as NotIncluded
from .errors import Redirected as Redirected
from .errors import Refused as Refused
from .errors import ReplayFailed as ReplayFailed
from .errors import SettingsError as SettingsError
from .errors import SignInFailed as SignInFailed
from .errors import StoreError as StoreError
from .errors import StoreWarning as StoreWarning
from .errors import StreamIncomplete as StreamIncomplete
from .errors import TooManyRequests as TooManyRequests
from .errors import Unauthorized as Unauthorized
from .errors import Unavailable as Unavailable
from .errors import UnexpectedAnswer as UnexpectedAnswer
from .filters import Filter as Filter
from .filters import a_contained_by as a_contained_by
from .filters import a_contains as a_contains
from .filters import a_equals as a_equals
from .filters import a_overlaps as a_overlaps
from .filters import accenti as accenti
from .filters import bbox as bbox
from .filters import casei as casei
from .filters import count_predictions as count_predictions
from .filters import count_truth as count_truth
from .filters import distance as distance
from .filters import div as div
from .filters import duration as duration
from .filters import field as field
from .filters import function as function
from .filters import interval as interval
from .filters import meta as meta
from .filters import now as now
from .filters import point as point
from .filters import polygon as polygon
from .filters import predicted as predicted
from .filters import prediction as prediction
from .filters import s_disjoint as s_disjoint
from .filters import s_intersects as s_intersects
from .filters import s_within as s_within
from .filters import sent as sent
from .filters import truth as truth
from .settings import Retries as Retries
from .sync import Export as Export
from .sync import Groups as Groups
from .sync import Inference as Inference
from .sync import Inferences as Inferences
from .sync import Model as Model
from .sync import Replay as Replay
from .sync import Store as Store
from .tables import Rows as Rows

if TYPE_CHECKING:
    from .asynchronous import AsyncExport as AsyncExport
    from .asynchronous import AsyncGroups as AsyncGroups
    from .asynchronous import AsyncInference as AsyncInference
    from .asynchronous import AsyncInferences as AsyncInferences
    from .asynchronous import AsyncModel as AsyncModel
    from .asynchronous import AsyncReplay as AsyncReplay
    from .asynchronous import AsyncStore as AsyncStore


def __getattr__(name: str) -> Any:
    """Import the asynchronous half when it is used: a notebook does not wait for it."""
    if name.startswith("Async"):
        return getattr(import_module(f"{__name__}.asynchronous"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
