"""Tiles show contours and keypoints, a few at a time; boxes, if there are none."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.producer import Capture, capture

from .conftest import Console, OpenPage
from .pictures import HEIGHT, WIDTH, make_png
from .watched_page import AskedRequests

TRIANGLE = [{"x": 20, "y": 20}, {"x": 120, "y": 20}, {"x": 70, "y": 140}]
LEFT = [{"x": 10, "y": 10}, {"x": 40, "y": 10}, {"x": 40, "y": 40}]
COUNT = 60
"""A page of the gallery: more than a window shows."""
MOST_AT_ONCE = 3
COUNT_DRAWINGS = """() => {
    const send = window.fetch;
    let underWay = 0;
    window.mostDrawings = 0;
    window.fetch = (where, ...more) => {
        if (!String(where).endsWith("/drawing")) return send(where, ...more);
        window.mostDrawings = Math.max(window.mostDrawings, ++underWay);
        return send(where, ...more).finally(() => { underWay -= 1; });
    };
}"""
"""Counts in the page how many drawings wait for an answer at once."""
KEYPOINTS = [[30, 40, 0.9], [0, 0, 0], [60, 90, 0.8]]
OF_TASK: dict[str, Any] = {
    "Image Segmentation": {"contour": [TRIANGLE, LEFT]},
    "Keypoint Detection": {"keypoints": KEYPOINTS},
}


def make_captures(model: str, task: str, count: int, **more: Any) -> list[Capture]:
    extras = {"task_type": task, "data_content_type": "image/png", "ok": True}
    extras |= {"width": WIDTH, "height": HEIGHT}
    return [
        capture(
            number,
            model_id=model,
            data=make_png(number),
            inference_id=f"{model}-{number}",
            predictions=[{"label": "cell", "score": 0.8, **OF_TASK[task], **more}],
            extras=extras,
        )
        for number in range(count)
    ]


def test_a_tile_shows_whole_contours(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("contours", "Image Segmentation", 1))
    page = open_page("#/m/contours")
    outlines = page.locator(".tile polygon.outline")
    expect(outlines).to_have_count(2)
    points = {outline.get_attribute("points") for outline in outlines.all()}
    assert points == {"20,20 120,20 70,140", "10,10 40,10 40,40"}
    page.get_by_role("slider").fill("0.9")
    expect(outlines).to_have_count(0)


def test_a_tile_shows_keypoints(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("keypoints", "Keypoint Detection", 1))
    page = open_page("#/m/keypoints")
    expect(page.locator(".tile circle")).to_have_count(2)
    expect(page.locator(".tile polygon")).to_have_count(0)


def test_asks_for_outlines_that_are_near_a_few_at_a_time(
    open_page: OpenPage, console: Console
) -> None:
    console.produce(*make_captures("many-contours", "Image Segmentation", COUNT))
    page = open_page("#/list/accounting")  # has no picture
    page.evaluate(COUNT_DRAWINGS)
    drawings = AskedRequests(page, "/drawing")
    page.goto(f"{console.address}/console/#/m/many-contours")
    expect(page.locator(".tile").first.locator("polygon.outline")).to_have_count(2)
    page.locator(".tile").last.scroll_into_view_if_needed()
    expect(page.locator(".tile").last.locator("polygon.outline")).to_have_count(2)
    assert len(drawings.urls) == len(set(drawings.urls)) < COUNT
    assert 0 < page.evaluate("window.mostDrawings") <= MOST_AT_ONCE


@pytest.mark.parametrize("status", [404, 503])
def test_boxes_stay_if_there_are_no_outlines(
    open_page: OpenPage, console: Console, status: int
) -> None:
    """What passes is asked for again."""
    model = f"no-outlines-{status}"
    console.produce(*make_captures(model, "Image Segmentation", 1))
    page = open_page("#/list/accounting")
    page.route("**/drawing", lambda route: route.fulfill(status=status, body="{}"))
    page.goto(f"{console.address}/console/#/m/{model}")
    outline = page.locator(".tile polygon.outline")
    expect(outline).to_have_attribute("points", "10,10 120,10 120,140 10,140")
    page.unroute("**/drawing")
    if status == 503:
        expect(outline).to_have_count(2)
