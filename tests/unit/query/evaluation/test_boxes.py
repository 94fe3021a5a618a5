"""Matched boxes agree with pycocotools, on random images with ties and with nothing in them."""

import io
import struct
from collections.abc import Sequence
from contextlib import redirect_stdout
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from inference_store.query.evaluation.box_matching import match
from inference_store.query.evaluation.box_wire import Request

_IOUS = (0.3, 0.5, 0.6, 1.0)
_SCORES = (None, 0.4, 0.6)


class Box(NamedTuple):
    image: int
    label: int
    corners: tuple[float, float, float, float]
    score: float = 0.0

    def pack(self, ordinal: int) -> bytes:
        """Return it as Postgres writes it."""
        numbers = struct.pack(">ii5d", ordinal, self.label, *self.corners, self.score)
        return name_image(self.image) + numbers

    def describe(self, number: int) -> dict[str, Any]:
        """Return it as COCO has it."""
        xmin, ymin, xmax, ymax = self.corners
        size = (xmax - xmin, ymax - ymin)
        named = {"id": number + 1, "image_id": self.image, "category_id": self.label}
        more = {"bbox": [xmin, ymin, *size], "area": size[0] * size[1], "score": self.score}
        return {**named, **more, "iscrowd": 0}


def name_image(number: int) -> bytes:
    # in order; the last byte of some is 0
    return struct.pack(">QQ", number, 256 * number)


def ask(
    images: Sequence[int], truths: Sequence[Box], predictions: Sequence[Box], **more: Any
) -> Any:
    incomplete, slices = more.pop("incomplete", ()), more.pop("slices", ())
    described = {one: name_image(one) + bytes([one not in incomplete]) for one in images}
    true, said = (
        b"".join(box.pack(n) for n, box in enumerate(some)) for some in (truths, predictions)
    )
    of_slices = [b"".join(described[image] for image in some) for some in slices]
    return match(Request(b"".join(described.values()), true, said, of_slices, **more))


class Judged(NamedTuple):
    """What `match` should say: counts by label and image, and average precisions by label."""

    counts: dict[tuple[int, int], tuple[int, int, int]]
    precisions: dict[int, list[float] | None]

    def add_up(self, label: int | None, images: Sequence[int]) -> list[int]:
        some = [
            n for (of, image), n in self.counts.items() if label in {None, of} and image in images
        ]
        return [sum(one[place] for one in some) for place in range(3)]


def judge(
    images: Sequence[int],
    truths: Sequence[Box],
    predictions: Sequence[Box],
    iou: float,
    score: float | None,
) -> Judged:
    labels = sorted({box.label for box in (*truths, *predictions)})
    true, said = COCO(), COCO()
    with redirect_stdout(io.StringIO()):
        for coco, boxes in ((true, truths), (said, predictions)):
            coco.dataset = {
                "images": [{"id": image} for image in images],
                "categories": [{"id": label} for label in labels],
                "annotations": [box.describe(n) for n, box in enumerate(boxes)],
            }
            coco.createIndex()
        curves, at_one = (COCOeval(true, said, "bbox") for _ in range(2))
        for one in (curves, at_one):
            one.params.areaRng, one.params.areaRngLbl = [[0, 1e10]], ["all"]
            one.params.maxDets = [100]
        at_one.params.iouThrs = np.array([iou])
        curves.evaluate()
        curves.accumulate()
        at_one.evaluate()
    counts = {}
    for image in filter(None, at_one.evalImgs):
        taken = [score is None or one >= score for one in image["dtScores"]]
        found = sum(map(min, taken, [id > 0 for id in image["dtMatches"][0]]))
        where = image["category_id"], image["image_id"]
        counts[where] = (found, sum(taken) - found, len(image["gtIds"]) - found)
    precisions = {}
    for n, label in enumerate(labels):
        precision = curves.eval["precision"][:, :, n, 0, 0]
        means = [float(some.mean()) for some in (precision, precision[0], precision[5])]
        precisions[label] = means if (precision > -1).any() else None
    return Judged(counts, precisions)


def make_boxes(random: Random, images: Sequence[int]) -> tuple[list[Box], list[Box]]:
    """Make boxes on a coarse grid: overlaps and scores are often equal."""

    def place() -> tuple[float, float, float, float]:
        x, y = random.randint(0, 30), random.randint(0, 30)
        return x, y, x + random.randint(1, 20), y + random.randint(1, 20)

    def label() -> int:
        return random.randint(1, 3)

    truths = [Box(i, label(), place()) for i in images for _ in range(random.randint(0, 5))]
    predictions = [
        Box(i, label(), place(), random.randint(0, 5) / 5)
        for i in images
        for _ in range(random.randint(0, 3))
    ]
    for box in truths:
        if random.random() < 0.8:
            x, y, right, low = box.corners
            moved = (x + random.randint(-2, 0), y + random.randint(-2, 0), right, low)
            other = label() if random.random() < 0.2 else box.label
            predictions.append(Box(box.image, other, moved, random.randint(0, 5) / 5))
    predictions.sort(key=lambda box: box.image)
    return truths, predictions


@pytest.mark.parametrize("part", range(4))
def test_agrees_with_pycocotools(part: int) -> None:
    for trial in range(250):
        random = Random(1000 * part + trial)
        images = range(random.randint(1, 5))
        truths, predictions = make_boxes(random, images)
        truths, predictions = truths if trial % 11 else [], predictions if trial % 13 else []
        iou, score = random.choice(_IOUS), random.choice(_SCORES)
        slices = [images[:2], images[1:]]
        answer = ask(images, truths, predictions, iou=iou, score=score, slices=slices)
        expected = judge(images, truths, predictions, iou, score)
        assert {label for label, *_ in answer["labels"]} == expected.precisions.keys()
        for label, counts, precisions in answer["labels"]:
            assert counts == expected.add_up(label, images), trial
            assert precisions == pytest.approx(expected.precisions[label], abs=1e-12)
        for some, (counts, _) in zip(slices, answer["slices"], strict=True):
            assert counts == expected.add_up(None, some)


def test_what_was_deleted_meanwhile() -> None:
    """Images, boxes and slices are read one after the other."""
    there, gone = Box(1, 1, (0, 0, 9, 9), 0.5), Box(2, 1, (0, 0, 9, 9), 0.5)
    request = Request(
        name_image(1) + b"\1",
        there.pack(0) + gone.pack(0),
        gone.pack(0) + there.pack(0),
        [name_image(2) + b"\1", name_image(0) + b"\1" + name_image(1) + b"\1"],
    )
    answer = match(request)
    assert answer["labels"] == [(1, [1, 0, 0], (1.0, 1.0, 1.0))]
    assert [counts for counts, _ in answer["slices"]] == [[0, 0, 0], [1, 0, 0]]


def test_more_than_a_hundred_of_an_image() -> None:
    random = Random(5)
    truths = [Box(0, 1, (4 * n, 0, 4 * n + 4, 4)) for n in range(130)]
    predictions = [box._replace(score=random.random()) for box in truths]
    answer, expected = ask([0], truths, predictions), judge([0], truths, predictions, 0.5, None)
    [(_, counts, precisions)] = answer["labels"]
    assert (counts, answer["left_out"]) == ([100, 0, 30], 30)
    assert counts == expected.add_up(1, [0])
    assert precisions == pytest.approx(expected.precisions[1], abs=1e-12)


def test_what_is_not_known_to_be_wrong() -> None:
    """Where the truth does not name everything, a prediction without a match does not count."""
    truths = [Box(0, 1, (0, 0, 9, 9)), Box(1, 1, (0, 0, 9, 9))]
    predictions = [
        Box(0, 1, (0, 0, 9, 9), 0.5),
        Box(0, 1, (20, 0, 29, 9), 0.9),
        Box(0, 2, (20, 0, 29, 9), 0.9),
        Box(1, 1, (0, 0, 9, 9), 0.4),
        Box(1, 1, (20, 0, 29, 9), 0.3),
    ]
    answer = ask([0, 1, 2], truths, predictions, incomplete=[0])
    assert answer["labels"] == [
        (1, [2, 1, 0], (1.0, 1.0, 1.0)),
        (2, [0, 0, 0], None),
    ]
    assert answer["incomplete"] == 1
    # F1 of images taken at random: within 0 and 1, around that of all
    low, high = answer["f1"]
    assert 0 <= low <= 4 / 5 <= high <= 1
    assert ask([0], truths[:1], predictions[:1])["f1"] is None
