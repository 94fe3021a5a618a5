"""Three questions one would ask of these inferences, and their real answers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .models import DIGITS, FACES, FRAMES, PEOPLE
from .rest import Rest

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class DemoQuery:
    """A question in words and as a request."""

    words: str
    path: str
    body: Mapping[str, Any]


QUERIES = (
    DemoQuery(
        "Where did the face detector find a face it hardly believes in?",
        f"/v1/models/{FACES.model_id}/inferences/query",
        {
            "prediction": {"label": "face", "score": {"lt": 0.4}},
            "include": ["metadata", "predictions"],
            "limit": _SHOWN,
        },
    ),
    DemoQuery(
        "What did the people detector say of the last frames of the hallway camera?",
        f"/v1/models/{PEOPLE.model_id}/inferences/query",
        {
            "metadata_filter": [
                {
                    "key": "frame_number",
                    "type": "int",
                    "operator": "gt",
                    "value": FRAMES * 3 // 4,
                },
                {"key": "data_source", "operator": "eq", "value": "hallway-camera-feed"},
            ],
            "include": ["metadata", "predictions"],
            "limit": _SHOWN,
        },
    ),
    DemoQuery(
        "How many images could the digit classifier half take for an 8?",
        f"/v1/models/{DIGITS.model_id}/inferences/count",
        {"prediction": {"label": "8", "score": {"gte": 0.1, "lt": 0.9}}},
    ),
)

FIRST = QUERIES[0]


def asked(rest: Rest, query: DemoQuery) -> str:
    """The question, its `curl`, and what the store answers now. Raises LocalStackError."""
    answer = rest.ask("POST", query.path, query.body)
    return f"# {query.words}\n{rest.curl(query.path, query.body)}\n{short(answer)}\n"


def short(answer: Mapping[str, Any]) -> str:
    """An answer in a few lines: a count as it is; of each inference id, photograph, findings."""
    if "items" not in answer:
        return f"→ {json.dumps(answer)}"
    return "\n".join(f"→ {_line(item)}" for item in answer["items"]) or "→ none"


def _line(item: Mapping[str, Any]) -> str:
    told = {entry["key"]: entry["value"] for entry in item.get("metadata") or ()}
    where = ", ".join(told[key] for key in ("photograph", "data_source") if key in told)
    found = [f"{one['label']} {one['score']:.2f}" for one in item.get("predictions") or ()]
    return f"{item['inference_id']} ({where}): {', '.join(found) or 'nothing found'}"
