"""Three questions one would ask of these inferences, and their real answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .models import DEMO_MODELS, DIGITS, FACES, FRAMES, PEOPLE
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
        "What did the people detector take for a person in the yard at night, and was sure of it?",
        f"/v1/models/{PEOPLE.model_id}/inferences/query",
        {
            "metadata_filter": [
                {"key": "frame_number", "type": "int", "operator": "gt", "value": FRAMES // 2},
                {"key": "data_source", "operator": "eq", "value": "yard-camera-feed"},
                {"key": "night", "type": "bool", "operator": "eq", "value": True},
            ],
            "prediction": {"label": "person", "score": {"gte": 0.7}},
            "include": ["metadata", "predictions"],
            "limit": _SHOWN,
        },
    ),
    DemoQuery(
        "Which handwritten 8 did the digit classifier take for a 1?",
        f"/v1/models/{DIGITS.model_id}/inferences/query",
        {
            "filter": "true_label = '8'",
            "prediction": {"label": "1", "score": {"gte": 0.5}},
            "include": ["metadata", "predictions"],
            "limit": _SHOWN,
        },
    ),
)

FIRST = QUERIES[0]
INCOMPLETE: Mapping[str, Any] = {
    "filter": "request_problem IS NOT NULL OR response_problem IS NOT NULL"
}
"""Captures of which a part was lost, or cannot be read."""


def asked(rest: Rest, query: DemoQuery) -> str:
    """The question, its `curl`, and what the store answers now. Raises LocalStackError."""
    answer = rest.ask("POST", query.path, query.body)
    return f"# {query.words}\n{rest.curl(query.path, query.body)}\n{short(answer)}\n"


def told_incomplete(rest: Rest) -> str:
    """How many captures are not whole, and how to see them; nothing where all are. Raises
    LocalStackError."""
    counts = {model.model_id: rest.count(model.model_id, INCOMPLETE) for model in DEMO_MODELS}
    return "".join(
        f"# {count} captures of {model_id} are not whole; their flags say why:\n"
        f"{rest.curl(f'/v1/models/{model_id}/inferences/query', INCOMPLETE)}\n"
        for model_id, count in counts.items()
        if count
    )


def short(answer: Mapping[str, Any]) -> str:
    """An answer in a few lines: of each inference its id, what was seen, and the first findings."""
    return "\n".join(f"→ {_line(item)}" for item in answer["items"]) or "→ none"


def _line(item: Mapping[str, Any]) -> str:
    told = {entry["key"]: entry["value"] for entry in item.get("metadata") or ()}
    seen = [told[key] for key in ("photograph", "data_source") if key in told]
    if "true_label" in told:
        seen.append(f"it is {told['true_label']}")
    predictions = list(item.get("predictions") or ())[:_SHOWN]
    found = [f"{one['label']} {one['score']:.2f}" for one in predictions]
    return f"{item['inference_id']} ({', '.join(seen)}): {', '.join(found) or 'nothing found'}"
