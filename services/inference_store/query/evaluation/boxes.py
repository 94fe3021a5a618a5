"""True boxes against predicted ones."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, Final

from sqlalchemy import select

from inference_store.index.tables import label, prediction, truth
from inference_store.inference.errors import Invalid
from inference_store.platform.worker_process import kill_worker, make_command, start_worker
from inference_store.query.aggregates.collector import read_label_names
from inference_store.query.aggregates.statement import NUMBER, Column
from inference_store.query.deadline import OutOfTime, Overloaded, bind_one

from .asking import Asked, choose_slices
from .box_wire import BOX_BYTES, IMAGE_BYTES, Request
from .evaluation import AveragePrecision, BoxesReport, BoxFigures, Figure, Slices
from .figures import Retrieval
from .labels import describe, ratio
from .truth_rows import Rows, column, select_boxes, select_images

MOST_BOXES: Final = 200_000
"""True and predicted ones together; of more, a sample of the images is matched."""
_MOST_IMAGES: Final = 100_000
_SECONDS: Final = 30.0
"""Matching takes no longer, nor the wait for a turn."""
_COMMAND: Final = make_command("inference_store.query.evaluation.box_matching")
_TURN: Final = asyncio.Semaphore(1)


async def evaluate_boxes(asked: Asked) -> tuple[BoxesReport, Slices | None]:
    """Return the report, and F1 of each slice."""
    images = partial(select_images, asked.sets)
    boxes = Column(column(images, "boxes", "number", "whole"), "total")
    size = (await asked.add_up(images, (boxes,))).get((), {NUMBER: 0, boxes: 0})
    share = min(MOST_BOXES / max(1, size[boxes]), _MOST_IMAGES / max(1, size[NUMBER]))
    asked = replace(asked, sets=replace(asked.sets, share=share))
    images = partial(select_images, asked.sets)
    image = Column(column(images, "image", "string"), "bytes")
    number = await _find_label(asked)
    slices = await asked.add_up_slices(images, image)
    (truths, unplaced), (predictions, others) = [
        await _read(asked, partial(select_boxes, asked.sets, of, number))
        for of in (truth, prediction)
    ]
    of_all = (await asked.add_up(images, (image,))).get((), {image: b""})
    request = Request(
        images=of_all[image],
        truths=truths,
        predictions=predictions,
        slices=[slices[key][image] for key in choose_slices(slices)],
        iou=asked.evaluation.iou,
        score=asked.evaluation.score,
    )
    matched = await match(request)
    left_out = unplaced + others + matched["left_out"]
    report = await _report(asked, request, matched, left_out=left_out, sampled=share < 1)
    f1_of = {
        images: _show_f1(Retrieval(*counts), interval)
        for images, (counts, interval) in zip(request.slices, matched["slices"], strict=True)
    }
    return report, asked.show_slices("f1", report.f1, slices, lambda sums: f1_of[sums[image]])


async def _find_label(asked: Asked) -> int | None:
    name = asked.evaluation.label
    if name is None:
        return None
    here = select(label.c.label).where(label.c.name == bind_one(name, label.c.name.type))
    number: int | None = await asked.collector.connection.scalar(here)
    if number is None:
        raise Invalid.of("label", f"no box has the label {name!r}")
    return number


async def _read(asked: Asked, rows: Rows) -> tuple[bytes, int]:
    """Return the boxes, and how many there are beside whose area is unknown."""
    box = Column(column(rows, "box", "string"), "bytes")
    found = (await asked.add_up(rows, (box,))).get((), {NUMBER: 0})
    boxes = found.get(box) or b""
    return boxes, found[NUMBER] - len(boxes) // BOX_BYTES


async def match(request: Request) -> Mapping[str, Any]:
    """Match boxes in a process of its own; one at a time. Raises OutOfTime, which is Overloaded if
    others took the time."""
    try:
        async with asyncio.timeout(_SECONDS):
            await _TURN.acquire()
    except TimeoutError:
        raise Overloaded from None
    try:
        process = await start_worker(*_COMMAND)
        try:
            async with asyncio.timeout(_SECONDS):
                answer, _ = await process.communicate(request.write())
        except TimeoutError:
            raise OutOfTime from None
        finally:
            if process.returncode is None:
                await kill_worker(process)
    finally:
        _TURN.release()
    if process.returncode:
        raise RuntimeError(f"the process that matches boxes ended with {process.returncode}")
    matched: Mapping[str, Any] = json.loads(answer)
    return matched


async def _report(
    asked: Asked, request: Request, matched: Mapping[str, Any], *, left_out: int, sampled: bool
) -> BoxesReport:
    labels = [
        (number, Retrieval(*counts), precisions) for number, counts, precisions in matched["labels"]
    ]
    labels.sort(key=lambda one: (-one[1].found - one[1].missed, -one[1].wrong, one[0]))
    most = asked.evaluation.most_labels
    names = await read_label_names(
        asked.collector.connection, {number for number, *_ in labels[:most]} - {0}
    )
    whole = Retrieval(*(sum(one[place] for _, one, _ in labels) for place in range(3)))
    known = [(number, precisions) for number, _, precisions in labels if precisions is not None]
    # boxes without a label are no label, unless none has one
    known = [one for one in known if one[0]] or known
    return BoxesReport(
        images=len(request.images) // IMAGE_BYTES,
        sampled=sampled,
        incomplete=matched["incomplete"],
        left_out=left_out,
        **_count(whole),
        precision=ratio(whole.found, whole.found + whole.wrong),
        recall=ratio(whole.found, whole.found + whole.missed),
        f1=_show_f1(whole, matched["f1"]),
        average_precision=_show_precisions(
            [fmean(of) for of in zip(*(of for _, of in known), strict=True)] if known else None
        ),
        labels=[
            BoxFigures(
                **describe(names.get(number), counts),
                **_count(counts),
                average_precision=_show_precisions(precisions),
            )
            for number, counts, precisions in labels[:most]
        ],
        other_labels=max(0, len(labels) - most),
    )


def _count(counts: Retrieval) -> dict[str, Any]:
    names = ("true_positives", "false_positives", "false_negatives")
    return dict(zip(names, counts, strict=True))


def _show_f1(counts: Retrieval, interval: tuple[float, float] | None) -> Figure:
    """Return F1; `n`: of how many boxes, true or predicted."""
    return Figure(value=counts.f1, interval=interval, n=sum(counts))


def _show_precisions(precisions: list[float] | None) -> AveragePrecision:
    names = ("ap", "ap_50", "ap_75")
    return AveragePrecision(**dict(zip(names, precisions or (None, None, None), strict=True)))
