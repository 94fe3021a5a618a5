"""What is asked of the api, and what of the floor in the same round."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.ingest.events import MODEL

from .callers import Question
from .stage import Stage

_INFERENCES: Final = f"/v1/models/{MODEL}/inferences"
_NDJSON: Final = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Case:
    """A line of the table. `most_times`: its bar, in times of the floor's median for one caller."""

    name: str
    api: Question
    floor: Question | None
    most_times: float | None = None
    # the bar of a picture: milliseconds over the floor
    most_more_ms: float | None = None


def cases(stage: Stage) -> list[Case]:
    """All lines but the stream."""
    uids, pictures = stage.uids, stage.pictures
    head = {"Authorization": f"Bearer {stage.key}"}

    def of_floor(name: str) -> Question:
        # pages from the newer half: there are 50 behind each
        half = len(uids) // 2
        return Question(lambda n: f"/{name}/{stage.model}/{uids[half + n % half]}")

    def page(**more: Any) -> Question:
        body = {"limit": 50, **more}
        return Question(lambda _: f"{_INFERENCES}/query", lambda _: body, head)

    return [
        Case(
            "one by its id, with everything and links",
            Question(lambda n: f"{_INFERENCES}/frame-{n % len(uids)}", headers=head),
            of_floor("by-id"),
            most_times=5,
        ),
        Case("a page of 50", page(include=[]), of_floor("page"), most_times=3),
        Case(
            "a page of 50 with metadata and predictions",
            page(include=["metadata", "predictions"]),
            of_floor("page-whole"),
            most_times=3.5,
        ),
        Case(
            "a count by one key",
            Question(lambda _: f"{_INFERENCES}/count", lambda _: {"filter": "zoom = 7"}, head),
            of_floor("count"),
        ),
        Case(
            "a picture of 100 KiB, beside S3's own GET",
            Question(lambda n: f"{_INFERENCES}/frame-{n % len(pictures)}/data", headers=head),
            Question(lambda n: pictures[n % len(pictures)]),
            most_more_ms=6,
        ),
    ]


def stream(stage: Stage) -> Question:
    """Everything as lines, with metadata and predictions."""
    head: Mapping[str, str] = {"Authorization": f"Bearer {stage.key}", "Accept": _NDJSON}
    body = {"include": ["metadata", "predictions"]}
    return Question(lambda _: f"{_INFERENCES}/query", lambda _: body, head)
