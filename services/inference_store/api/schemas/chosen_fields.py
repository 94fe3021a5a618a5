"""The names that `fields` may have."""

import re
from typing import Any, Final

from .inferences import ShownInference, ShownPrediction, Urls

FIELDS: Final = tuple(name for name in ShownInference.model_fields if name != "cursor")
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


def split_fields(names: Any) -> Any:
    """`a,b` in a link as `a` and `b`; a comma before what is no field belongs to a metadata key."""
    if not isinstance(names, list):
        return names
    return [part for name in names for part in _parts(str(name))]


def _parts(name: str) -> list[str]:
    first, *others = name.split(",")
    parts = [first]
    for other in others:
        if parts[-1].startswith("metadata.") and not re.search(FIELD_PATTERN, other.strip()):
            parts[-1] += f",{other}"
        else:
            parts.append(other.strip())
    return parts
