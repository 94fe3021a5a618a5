"""The names that `fields` may have."""

import re
from typing import Final

from .inferences import ShownInference, ShownPrediction, Urls

FIELDS: Final = tuple(ShownInference.model_fields)
"""Every field of an inference."""
PARTS: Final = {
    "predictions": tuple(ShownPrediction.model_fields),
    "urls": tuple(Urls.model_fields),
}
"""What may be chosen inside a field, as in `predictions.label`; of `metadata` any key."""


def _pattern() -> str:
    parts = [f"{field}\\.({'|'.join(map(re.escape, names))})" for field, names in PARTS.items()]
    return f"^({'|'.join([*map(re.escape, FIELDS), *parts, 'metadata[.].+'])})$"


FIELD_PATTERN: Final = _pattern()
"""The same as a regular expression of ECMA 262, for the OpenAPI."""
