"""The names of the reference system's Python library, answered by an Inference Store.

Code that says `from chariot.inference_store import inference, models` says
`from inference_store_client.chariot import inference, models` instead, and `connect` once.
docs/how-to/client.md says what is only emulated.
"""

from . import inference as inference
from . import models as models
from .inference import bulk_delete_inferences as bulk_delete_inferences
from .inference import connect as connect
from .inference import count_inferences as count_inferences
from .inference import filter_inferences as filter_inferences
from .inference import get_inference as get_inference
from .inference import get_inferences as get_inferences
from .models import BaseInferenceFilter as BaseInferenceFilter
from .models import Inference as Inference
from .models import Metadata as Metadata
from .models import MetadataFilter as MetadataFilter
from .models import MetadataFilterOperator as MetadataFilterOperator
from .models import MetadataFilterType as MetadataFilterType
from .models import NewGetInferencesRequest as NewGetInferencesRequest
from .models import Pagination as Pagination
from .models import PaginationSortDirection as PaginationSortDirection
from .models import PaginationSortField as PaginationSortField
