"""The names of the reference system's Python library, answered by an Inference Store.

Code that says `from chariot.inference_store import inference, models` says
`from inference_store_client.chariot import inference, models` instead, and `connect` once.
docs/how-to/client.md says what is only emulated.
"""

from . import inference, models
from .connection import connect
from .inference import (
    bulk_delete_inferences,
    count_inferences,
    filter_inferences,
    get_inference,
    get_inferences,
)
from .models import (
    BaseInferenceFilter,
    Inference,
    Metadata,
    MetadataFilter,
    MetadataFilterOperator,
    MetadataFilterType,
    NewGetInferencesRequest,
    Pagination,
    PaginationSortDirection,
    PaginationSortField,
)

__all__ = [
    "BaseInferenceFilter",
    "Inference",
    "Metadata",
    "MetadataFilter",
    "MetadataFilterOperator",
    "MetadataFilterType",
    "NewGetInferencesRequest",
    "Pagination",
    "PaginationSortDirection",
    "PaginationSortField",
    "bulk_delete_inferences",
    "connect",
    "count_inferences",
    "filter_inferences",
    "get_inference",
    "get_inferences",
    "inference",
    "models",
]
