"""What an inference and its replay disagree in, from the rows of both.

`disagreement` orders them: 2 if one succeeded and the other did not, 1 for another top label, and
up to 1 each for the share of boxes, values and texts that only one of them has. 0: they agree.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ARRAY, any_, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.export.jobs import ExportJob
from inference_store.index.tables import CODE_POINTS, inference
from inference_store.inference.events import uid_floor
from inference_store.inference.metadata import decode_entries
from inference_store.inference.stored_requests import ReplayMark
from inference_store.query.deadline import find_ranges
from inference_store.query.lookup import is_marked, read_visible
from inference_store.query.read import Inference

from .items import ReplayPlan, change_items, list_unsettled

IOU: Final = 0.5
"""The least overlap of boxes that match."""
_MOST_BOXES: Final = 300
"""Of a side that are matched, the best scores first."""
_COMPARED: Final = 500
_EARLIER: Final = timedelta(hours=1)
"""How far the clock of the proxy may be behind."""
_INCLUDED: Final = ("metadata", "predictions")
_BOX: Final = ("xmin", "ymin", "xmax", "ymax")
_TOKENS: Final = "total_tokens"


async def compare_some(engine: AsyncEngine, job: ExportJob, *, wait_seconds: float) -> int:
    """Compare the members whose replays have arrived, and settle those that took too long; return
    how many."""
    plan = ReplayPlan.of(job)
    async with engine.connect() as connection:
        rows = await list_unsettled(connection, job.id, _COMPARED)
        if not rows:
            return 0
        began = (job.started_at or job.requested_at) - _EARLIER
        uids = [row.uid for row in rows]
        arrived = await _find_arrived(connection, job.id, plan.to_model, uids, began)
        spans = await find_ranges(connection)
        old = await read_visible(connection, job.model, [*arrived], spans, include=_INCLUDED)
        became = [*arrived.values()]
        new = await read_visible(connection, plan.to_model, became, spans, include=_INCLUDED)
    by_uid = {one.uid: one for one in new}
    changes: dict[UUID, dict[str, Any]] = {}
    for one in old:
        if (replay := by_uid.get(arrived[one.uid])) is not None:
            difference = compare(one, replay, plan.tolerance, plan.version)
            changes[one.uid] = {
                "state": "compared",
                "to_model": plan.to_model,
                "to_uid": replay.uid,
                "disagreement": measure(difference),
                "difference": difference,
            }
    for row in rows:
        if row.uid not in changes and row.age > wait_seconds:
            changes[row.uid] = {"state": "missing" if row.state == "waiting" else "listed"}
    async with engine.begin() as connection:
        await change_items(connection, job.id, changes)
    return len(changes)


async def _find_arrived(
    connection: AsyncConnection, job: UUID, to_model: int, uids: Sequence[UUID], since: datetime
) -> dict[UUID, UUID]:
    """Return the inferences that calls became, by what they repeat; of a call that was made twice
    the first."""
    here = inference.c
    ids = {ReplayMark(job, uid).inference_id: uid for uid in uids}
    query = select(here.inference_id, here.uid).where(
        here.model == to_model,
        here.uid >= uid_floor(since),
        here.inference_id == any_(literal([*ids], ARRAY(CODE_POINTS))),
        ~is_marked(here.model, here.uid),
    )
    arrived: dict[UUID, UUID] = {}
    for name, uid in await connection.execute(query.order_by(here.uid)):
        arrived.setdefault(ids[name], uid)
    return arrived


def compare(
    old: Inference, new: Inference, tolerance: float, version: str | None = None
) -> dict[str, Any]:
    """Return what two inferences say, and in what they differ; None: neither has any of it.
    `version`: that was asked for."""
    sides = (old, new)
    versions = [one.row["model_version"] for one in sides]
    ok = [one.row["ok"] is not False for one in sides]
    predictions = [one.predictions or [] for one in sides]
    return {
        "ok": {**_before_after(ok), "flipped": ok[0] != ok[1]},
        "label": {
            **_before_after([one.top_label for one in sides]),
            "flipped": old.top_label != new.top_label,
        },
        "score": _before_after([one.row["top_score"] for one in sides]),
        "version": {**_before_after(versions), "other": version not in (None, versions[1])},
        "boxes": _compare_boxes(*predictions),
        "values": _compare_values(predictions[0], predictions[1], tolerance),
        "texts": _compare_texts(*predictions),
        "latency_ms": _before_after([_find_latency(one.row) for one in sides]),
        "tokens": _before_after([_find_tokens(one) for one in sides]),
    }


def measure(difference: Mapping[str, Any]) -> float:
    """Return how much they disagree."""
    boxes, values, texts = (difference[name] for name in ("boxes", "values", "texts"))
    total: float = 2 * difference["ok"]["flipped"] + difference["label"]["flipped"]
    if boxes is not None:
        apart = boxes["lost"] + boxes["new"]
        total += apart / (apart + boxes["matched"])
    if values is not None:
        total += values["different"] / values["compared"]
    if texts is not None:
        total += texts["different"] / texts["compared"]
    return total


def _before_after(sides: Sequence[Any]) -> dict[str, Any]:
    return {"before": sides[0], "after": sides[1]}


Predicted = Sequence[Mapping[str, Any]]


def _compare_boxes(old: Predicted, new: Predicted) -> dict[str, Any] | None:
    by_label: dict[Any, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for side, predictions in enumerate((old, new)):
        boxed = [each for each in predictions if each["xmin"] is not None]
        for each in boxed[:_MOST_BOXES]:
            by_label[each["label"]][side].append([each[name] for name in _BOX])
    if not by_label:
        return None
    counts: Counter[str] = Counter(matched=0, lost=0, new=0)
    for before, after in by_label.values():
        matched = sum(1 for _ in _match(before, after))
        counts.update(matched=matched, lost=len(before) - matched, new=len(after) - matched)
    return dict(counts)


def _match(before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yield pairs of boxes of one label, those that overlap most first; each is in one."""
    overlaps = (
        (overlap, i, j)
        for i, one in enumerate(before)
        for j, other in enumerate(after)
        if (overlap := _find_iou(one, other)) >= IOU
    )
    taken: tuple[set[int], set[int]] = set(), set()
    for _, i, j in sorted(overlaps, key=lambda each: (-each[0], each[1:])):
        if i not in taken[0] and j not in taken[1]:
            taken[0].add(i)
            taken[1].add(j)
            yield i, j


def _find_iou(one: Sequence[float], other: Sequence[float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if one == other:
        return 1.0
    if width <= 0 or height <= 0:
        return 0.0
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return float(width * height / (areas - width * height))


def _compare_values(old: Predicted, new: Predicted, tolerance: float) -> dict[str, Any] | None:
    """Compare numbers at the same place of the answers."""
    before, after = (
        {
            (each["output"], each["ordinal"]): float(each["value"])
            for each in predictions
            if each["value"] is not None
        }
        for predictions in (old, new)
    )
    if not before and not after:
        return None
    places = before.keys() & after.keys()
    different = len(before.keys() ^ after.keys())
    different += sum(
        not math.isclose(before[at], after[at], rel_tol=tolerance, abs_tol=tolerance)
        for at in places
    )
    largest = max((abs(before[at] - after[at]) for at in places), default=None)
    return {"compared": len(before | after), "different": different, "largest": largest}


def _compare_texts(old: Predicted, new: Predicted) -> dict[str, Any] | None:
    """Compare answers and texts, wherever they stand."""
    before, after = (
        Counter(
            tuple(each[name] for name in ("label", "text", "answer", "start", "end"))
            for each in predictions
            if each["text"] is not None or each["answer"] is not None
        )
        for predictions in (old, new)
    )
    if not before and not after:
        return None
    different = max((before - after).total(), (after - before).total())
    return {"compared": max(before.total(), after.total()), "different": different}


def _find_latency(row: Mapping[str, Any]) -> float | None:
    began, ended = row["forwarded_at"], row["responded_at"]
    return None if began is None or ended is None else (ended - began).total_seconds() * 1000


def _find_tokens(one: Inference) -> int | None:
    for entry in decode_entries(one.metadata or b"[]"):
        if entry.key == _TOKENS and (entry.value or "").isdecimal():
            return int(entry.value or 0)
    return None
