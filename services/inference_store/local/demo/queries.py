"""Three typical questions about these inferences, and their real answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .models import DEMO_MODELS, DIGITS, FACES, FRAMES, PEOPLE
from .rest import Rest

_LIMIT = 3


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
            "limit": _LIMIT,
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
            "limit": _LIMIT,
        },
    ),
    DemoQuery(
        "Which handwritten 8 did the digit classifier take for a 1?",
        f"/v1/models/{DIGITS.model_id}/inferences/query",
        {
            "filter": "true_label = '8'",
            "prediction": {"label": "1", "score": {"gte": 0.5}},
            "include": ["metadata", "predictions"],
            "limit": _LIMIT,
        },
    ),
)

FIRST = QUERIES[0]
INCOMPLETE: Mapping[str, Any] = {
    "filter": "request_problem IS NOT NULL OR response_problem IS NOT NULL"
}
"""The captures that are incomplete, or unreadable in part."""


def format_answer(rest: Rest, query: DemoQuery) -> str:
    """Return the question, its `curl`, and the store's answer now. Raises LocalStackError."""
    answer = rest.ask("POST", query.path, query.body)
    return f"# {query.words}\n{rest.curl(query.path, query.body)}\n{short(answer)}\n"


def describe_incomplete(rest: Rest) -> str:
    """Return how many captures are incomplete, and how to see them; empty if all are complete.
    Raises LocalStackError."""
    counts = {model.model_id: rest.count(model.model_id, INCOMPLETE) for model in DEMO_MODELS}
    return "".join(
        f"# {count} captures of {model_id} are not whole; their flags say why:\n"
        f"{rest.curl(f'/v1/models/{model_id}/inferences/query', INCOMPLETE)}\n"
        for model_id, count in counts.items()
        if count
    )


def short(answer: Mapping[str, Any]) -> str:
    """Return an answer in a few lines: the id, the picture and the first findings of each
    inference."""
    return "\n".join(f"→ {_format_item(item)}" for item in answer["items"]) or "→ none"


def _format_item(item: Mapping[str, Any]) -> str:
    metadata = {entry["key"]: entry["value"] for entry in item.get("metadata") or ()}
    facts = [metadata[key] for key in ("photograph", "data_source") if key in metadata]
    if "true_label" in metadata:
        facts.append(f"it is {metadata['true_label']}")
    predictions = list(item.get("predictions") or ())[:_LIMIT]
    findings = [f"{prediction['label']} {prediction['score']:.2f}" for prediction in predictions]
    return f"{item['inference_id']} ({', '.join(facts)}): {', '.join(findings) or 'nothing found'}"
