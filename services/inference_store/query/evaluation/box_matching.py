"""Matches boxes as COCO does, as a process of its own: it takes seconds, and memory that is given
back when it ends. `python -m` starts it; it reads one request, and writes one answer.

Each label is matched by itself, on the images that have it: for all labels together the library
keeps a place for each label of each image.
"""

import json
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster

from .box_wire import BOX, IMAGE, PLACE, Request

MOST_OF_A_LABEL: Final = 100
"""Of an image: its predictions with the highest scores are matched; COCO's number."""
_MEMORY_BYTES: Final = 2 * 1024 * 1024 * 1024
_OVERLAPS: Final = np.linspace(0.5, 0.95, 10)
_50, _75 = 0, 5
_SAMPLES: Final = 200
_SEED: Final = 2026


def match(request: Request) -> Mapping[str, Any]:
    """Return the counts (found, wrong, missed) and average precisions of each label, and the counts
    of each slice, with intervals of F1."""
    images = np.sort(np.frombuffer(request.images, IMAGE), order="uid")
    truths, predictions = _read(request.truths, images), _read(request.predictions, images)
    counts = np.zeros((3, len(images)), np.int64)
    labels, left_out = [], 0
    for label in np.union1d(truths["label"], predictions["label"]).tolist():
        true, said = (boxes[boxes["label"] == label] for boxes in (truths, predictions))
        own = _Label(true, said, images)
        of_label = own.count(request.iou, request.score)
        counts += of_label
        left_out += own.left_out
        labels.append((label, of_label.sum(axis=1).tolist(), own.average_precision()))
    of_slices = (_find(np.frombuffer(some, IMAGE), images) for some in request.slices)
    slices = [counts[:, places[there]] for places, there in of_slices]
    return {
        "labels": labels,
        "left_out": left_out,
        "incomplete": int((~images["complete"]).sum()),
        "f1": _resample(counts),
        "slices": [(some.sum(axis=1).tolist(), _resample(some)) for some in slices],
    }


def _read(boxes: bytes, images: Any) -> Any:
    """Return the boxes of these images in their order, which decides between equal scores; the
    image of each is its place."""
    read = np.frombuffer(boxes, BOX)
    read = read[np.lexsort((read["ordinal"], read["uid"]))]
    places, there = _find(read, images)
    placed = np.empty(int(there.sum()), [("image", np.int64), *PLACE])
    placed["image"] = places[there]
    for name, *_ in PLACE:
        placed[name] = read[name][there]
    return placed


def _find(some: Any, images: Any) -> tuple[Any, Any]:
    """Return the place of the image of each, and whether it is there: it may have been deleted, or
    written, between two statements."""
    places = np.searchsorted(images["uid"], some["uid"])
    there = places < len(images)
    there[there] = images["uid"][places[there]] == some["uid"][there]
    return places, there


class _Label:
    """The boxes of one label."""

    def __init__(self, truths: Any, predictions: Any, images: Any) -> None:
        self._truths, self._predictions = truths, predictions
        self._complete = images["complete"]
        by_score = np.lexsort((-predictions["score"], predictions["image"]))
        ordered = predictions["image"][by_score]
        first = np.searchsorted(ordered, ordered)
        self._taken = np.zeros(len(predictions), bool)
        self._taken[by_score] = np.arange(len(predictions)) - first < MOST_OF_A_LABEL
        self.left_out = int((~self._taken).sum())
        self._matching = self._prepare() if len(truths) and len(predictions) else None

    def _prepare(self) -> Any:
        # LVIS's words for a truth that does not name all there is: a prediction without a match is
        # neither right nor wrong there
        whole, part = (
            {"neg_category_ids": [1], "not_exhaustive_category_ids": []},
            {"neg_category_ids": [], "not_exhaustive_category_ids": [1]},
        )
        frames = [
            {"id": image, **(whole if self._complete[image] else part)}
            for image in np.union1d(self._truths["image"], self._predictions["image"]).tolist()
        ]
        kinds = [{"id": 1, "frequency": "f"}]
        true, said = (
            COCO({"images": frames, "categories": kinds, "annotations": list(_describe(boxes))})
            for boxes in (self._truths, self._predictions)
        )
        how: dict[str, Any] = {"lvis_style": True, "print_function": lambda *_: None}
        matching = COCOeval_faster(true, said, "bbox", **how)
        matching.params.maxDets = [MOST_OF_A_LABEL]
        matching.params.areaRng, matching.params.areaRngLbl = [[0, float("inf")]], ["all"]
        return matching

    def average_precision(self) -> tuple[float, float, float] | None:
        """Return COCO's AP, AP50 and AP75; None where nothing is true."""
        if self._matching is None:
            return (0.0, 0.0, 0.0) if len(self._truths) else None
        precision = self._run(_OVERLAPS)["precision"][:, :, 0, 0, 0]
        return float(precision.mean()), float(precision[_50].mean()), float(precision[_75].mean())

    def count(self, iou: float, score: float | None) -> Any:
        """Return how many are found, wrong and missed in each image. A prediction takes its match
        before those with lower scores: leaving these out changes no other match."""
        said, matched = self._predictions, np.zeros(len(self._predictions), bool)
        if self._matching is not None:
            pairs = self._run(np.array([iou]))["matched"]
            matched[[int(pair.partition("_")[0]) - 1 for pair in pairs]] = True
        asked = self._taken if score is None else self._taken & (said["score"] >= score)
        number = len(self._complete)
        found = np.bincount(said["image"][asked & matched], minlength=number)
        beside = asked & ~matched & self._complete[said["image"]]
        wrong = np.bincount(said["image"][beside], minlength=number)
        true = np.bincount(self._truths["image"], minlength=number)
        return np.stack([found, wrong, true - found])

    def _run(self, overlaps: Any) -> Mapping[str, Any]:
        matching: Any = self._matching
        matching.params.iouThrs = overlaps
        matching.evaluate()
        matching.accumulate()
        known = matching.ious  # the overlaps are computed once
        matching.computeIoU = lambda image, label: known[image, label]
        counted: Mapping[str, Any] = matching.eval
        return counted


def _describe(boxes: Any) -> Iterator[dict[str, Any]]:
    """Yield boxes as COCO has them: corner and size. Ids begin with 1, for 0 is no match."""
    corners, ends = boxes["at"][:, :2], boxes["at"][:, 2:]
    columns = boxes["image"], corners, ends - corners, boxes["score"]
    rows = zip(*(one.tolist() for one in columns), strict=True)
    for number, (image, corner, size, score) in enumerate(rows, 1):
        place = {"id": number, "image_id": image, "category_id": 1, "score": score, "iscrowd": 0}
        yield {**place, "bbox": [*corner, *size], "area": size[0] * size[1]}


def _resample(counts: Any) -> tuple[float, float] | None:
    """Return the middle 95 % of F1 of as many images taken at random, again and again; None of
    fewer than two images, or without boxes."""
    random, number = np.random.default_rng(_SEED), counts.shape[1]
    if number < 2:
        return None
    taken = (random.integers(0, number, number) for _ in range(_SAMPLES))
    times = (np.bincount(some, minlength=number) for some in taken)
    found, wrong, missed = np.stack([counts @ one for one in times], axis=1)
    whole = 2 * found + wrong + missed
    some = whole > 0  # not only images without boxes
    if not some.any():
        return None
    low, high = np.percentile(2 * found[some] / whole[some], [2.5, 97.5])
    return float(low), float(high)


if __name__ == "__main__":
    with suppress(ValueError, OSError):  # not every system bounds the address space
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    json.dump(match(Request.read(sys.stdin.buffer)), sys.stdout)
