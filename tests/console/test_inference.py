"""The page of an inference: every task, outlines, metadata, neighbours within the filter."""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.pictures import HEIGHT, WIDTH, make_png
from tests.console.watched_page import AskedRequests
from tests.producer import Capture, capture

from .conftest import Console, OpenPage
from .content import STREET


def open_first(open_page: OpenPage, model: str, query: str = "") -> Page:
    """Open the page of a model's newest inference."""
    page = open_page(f"#/m/{model}{query}")
    page.locator(".tile").first.click()
    return page


def test_next_and_previous_stay_inside_the_filter(open_page: OpenPage) -> None:
    page = open_first(open_page, STREET, "?f=data_source%20%3D%20'camera-1'&s=frame_number")
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text(f"{STREET}-0001")
    page.keyboard.press("j")
    expect(heading).to_have_text(f"{STREET}-0004")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(heading).to_have_text(f"{STREET}-0004")
    expect(page.get_by_text("2 of 43")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".tile").first).to_be_visible()


def test_list_and_picture_point_at_each_other(open_page: OpenPage) -> None:
    page = open_first(open_page, STREET, "?f=frame_number%20%3D%203")
    rows = page.locator("ol button")
    expect(rows).to_have_count(2)
    rows.filter(has_text="car").hover()
    expect(page.locator("g.chosen text")).to_have_text("car 0.50")
    page.locator("polygon.outline").first.hover()
    expect(page.locator("ol button.chosen")).to_have_count(1)


def test_metadata_filter_by_a_click(open_page: OpenPage) -> None:
    page = open_first(open_page, STREET)
    page.get_by_role("button", name="camera-0", exact=True).click()
    expect(page.get_by_role("combobox", name="Filter")).to_have_value("data_source = 'camera-0'")
    expect(page.locator(".tile").first).to_be_visible()


def test_timings_retention_and_raw_bytes(open_page: OpenPage) -> None:
    page = open_first(open_page, STREET)
    expect(page.get_by_text("model 10 ms")).to_be_visible()
    expect(page.get_by_text("No rule applies")).to_be_visible()
    page.get_by_text("Raw: response").click()
    expect(page.locator("pre")).to_contain_text('"name": "predictions"')


def test_shows_each_task(open_page: OpenPage) -> None:
    for model, texts in {
        "pets": ("cat",),
        "reviews": ("What a film!",),
        "writer": ("It is 324 m tall.", "How tall is the tower?"),
        "captions": ("What is it?",),
        "odd": ("See the raw response",),
    }.items():
        page = open_first(open_page, model)
        for text in texts:
            expect(page.get_by_text(text).first).to_be_visible()


def test_a_conversation_that_the_proxy_stored_has_a_message_for_each_turn(
    open_page: OpenPage, console: Console
) -> None:
    turns = "user: How tall\n\nis it?\n\nassistant: 324 m.\n\nuser: And how old?"
    extras = {"task_type": "Text Generation", "data_content_type": "text/plain", "ok": True}
    answers = [{"generated_text": "137 years."}]
    console.produce(
        capture(7, model_id="talker", data=turns.encode(), predictions=answers, extras=extras)
    )
    messages = open_first(open_page, "talker").get_by_role("main").locator("ol > li")
    expect(messages.locator("h2")).to_have_text(["user", "assistant", "user", "model"])
    expect(messages.first.locator("p")).to_have_text("How tall is it?")


def test_turned_boxes_and_contours(open_page: OpenPage) -> None:
    for model in ("ships", "cells"):
        page = open_first(open_page, model)
        line = page.locator(".large polygon.outline")
        expect(line).to_have_count(1)
        points = [part.split(",") for part in (line.get_attribute("points") or "").split()]
        assert len(points) >= 4
        if model == "cells":
            assert [float(x) for x, _ in points[:4]] == [20, 120, 120, 20]
        else:
            assert len({x for x, _ in points}) == 4


def test_deep_link_opens_an_inference_with_its_neighbours(
    open_page: OpenPage, console: Console
) -> None:
    """They follow the order of the page; none of the loaded pages contains the inference."""
    for first, sort, numbers in ((5, "", (4, 5, 6)), (125, "s=frame_number&", (126, 125, 124))):
        inference = console.ask("GET", f"/v1/models/{STREET}/inferences/{STREET}-{first:04d}")
        page = open_page(f"#/m/{STREET}?{sort}sel={inference['uid']}")
        heading = page.get_by_role("heading", level=1)
        expect(heading).to_have_text(f"{STREET}-{first:04d}")
        for key, button, number in zip("jkk", ("Next", *2 * ["Previous"]), numbers, strict=True):
            expect(page.get_by_role("button", name=button)).to_be_enabled()
            page.keyboard.press(key)
            expect(heading).to_have_text(f"{STREET}-{number:04d}")
    page.get_by_role("link", name=f"← {STREET}").click()
    expect(page).to_have_url(re.compile(rf"#/m/{STREET}\?s=frame_number$"))


def test_erased_inference_disappears(open_page: OpenPage, console: Console) -> None:
    console.produce(*(capture(number, model_id="shrinking") for number in range(2)))
    first, second = console.find_ids("shrinking", sort="frame_number")
    page = open_first(open_page, "shrinking", "?s=frame_number")
    expect(page.get_by_role("heading", level=1)).to_have_text(first)
    console.ask("DELETE", f"/v1/models/shrinking/inferences/{second}")
    page.keyboard.press("j")
    expect(page.get_by_role("alert")).to_contain_text("It may have been erased")
    expect(page.locator(".large")).to_have_count(0)
    page.get_by_role("link", name="The list of erasures").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Erasures")


def test_a_picture_is_enlarged_and_moved(open_page: OpenPage) -> None:
    page = open_first(open_page, STREET, "?f=frame_number%20%3D%203")
    sheet = page.locator(".sheet")
    expect(sheet.locator("img")).to_be_visible()
    page.keyboard.press("+")
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="225 %")).to_be_visible()
    box = page.locator(".zoom").bounding_box()
    assert box
    before = sheet.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 40, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    after = sheet.bounding_box()
    assert before
    assert after
    assert round(after["x"] - before["x"]) == 40
    page.keyboard.press("0")
    expect(page.get_by_role("button", name="Zoom out")).to_be_disabled()


def open_editor(open_page: OpenPage, console: Console, number: int) -> tuple[Page, Locator, str]:
    """Open the editor of an inference; return the page, the dialog and the inference's path."""
    path = f"/v1/models/{STREET}/inferences/{STREET}-{number:04d}"
    page = open_page(f"#/m/{STREET}?sel={console.ask('GET', path)['uid']}")
    page.get_by_role("button", name="Edit …").click()
    return page, page.get_by_role("dialog", name="Edit the metadata"), path


def read_items(console: Console, path: str) -> dict[str, tuple[str, Any]]:
    """Return the stored type and value of each key."""
    items = console.ask("GET", f"{path}?include=metadata")["metadata"]
    return {item["key"]: (item["type"], item["value"]) for item in items}


def test_items_are_changed_and_added(open_page: OpenPage, console: Console) -> None:
    page, dialog, path = open_editor(open_page, console, 80)
    expect(dialog.get_by_role("button", name="Nothing changed")).to_be_disabled()
    dialog.get_by_role("group", name="data_source").get_by_label("Value").fill("roof")
    dialog.get_by_role("button", name="Add an item").click()
    item = dialog.get_by_role("group", name="New item")
    item.get_by_label("Key").fill("reviewed")
    item.get_by_label("Type").select_option("bool")
    item.get_by_label("Value").fill("perhaps")
    dialog.get_by_role("button", name="Save 2 items").click()
    expect(dialog.get_by_role("alert")).to_contain_text("bool")
    item.get_by_label("Value").fill("true")
    dialog.get_by_role("button", name="Save 2 items").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="roof", exact=True)).to_be_visible()
    stored = read_items(console, path)
    assert stored["data_source"] == ("string", "roof")
    assert stored["reviewed"] == ("bool", "true")


def test_stale_revision_keeps_the_draft(open_page: OpenPage, console: Console) -> None:
    _, dialog, path = open_editor(open_page, console, 81)
    dialog.get_by_role("group", name="data_source").get_by_label("Value").fill("mine")
    other = [{"key": "note", "type": "string", "value": "theirs"}]
    console.ask("POST", f"{path}/metadata", {"metadata": other})
    dialog.get_by_role("button", name="Save one item").click()
    alert = dialog.get_by_role("alert")
    expect(alert).to_contain_text("Someone else changed it after you opened it")
    assert read_items(console, path)["data_source"] != ("string", "mine")
    alert.get_by_role("button", name="Load again").click()
    expect(dialog.get_by_role("group", name="note").get_by_label("Value")).to_have_value("theirs")
    dialog.get_by_role("button", name="Save one item").click()
    expect(dialog).to_have_count(0)
    stored = read_items(console, path)
    assert stored["data_source"] == ("string", "mine")
    assert stored["note"] == ("string", "theirs")


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
    page.get_by_role("slider", name="Lowest score").fill("0.9")
    expect(outlines).to_have_count(0)


def test_a_tile_shows_keypoints(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("keypoints", "Keypoint Detection", 1))
    page = open_page("#/m/keypoints")
    expect(page.locator(".tile circle")).to_have_count(2)
    expect(page.locator(".tile polygon")).to_have_count(0)


def test_asks_for_near_outlines_a_few_at_a_time(open_page: OpenPage, console: Console) -> None:
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
def test_boxes_stay_without_outlines(open_page: OpenPage, console: Console, status: int) -> None:
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


def test_tags_are_set_on_a_selection_and_on_one(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("tagged", "Image Segmentation", 3))
    page = open_page("#/m/tagged")
    for name in ("tagged-0", "tagged-1"):
        page.get_by_role("checkbox", name=f"Select {name}").check(force=True)
    bar = page.get_by_role("region", name="Selection")
    bar.get_by_label("Tag", exact=True).fill("look again")
    bar.get_by_role("button", name="Add tag").click()
    expect(bar.get_by_text("2 changed")).to_be_visible()
    expect(page.locator(".tile").get_by_text("look again")).to_have_count(2)
    field = page.get_by_role("complementary", name="Fields").locator("details", has_text="tags")
    field.locator("summary").click()
    expect(field.get_by_role("button", name="look again 2")).to_be_visible()
    bar.get_by_role("button", name="Remove tag").click()
    expect(page.locator(".tile").get_by_text("look again")).to_have_count(0)
    expect(field).to_have_count(0)
    page.get_by_role("button", name="Select nothing").click()
    page.locator(".tile").first.click()
    page.get_by_label("Tag", exact=True).fill("bird")
    page.get_by_role("button", name="Add tag").click()
    page.get_by_role("button", name="bird", exact=True).wait_for()
    page.get_by_label("Note", exact=True).fill("not a cell")
    page.get_by_role("button", name="Save the note").click()
    expect(page.get_by_role("button", name="not a cell")).to_be_visible()
    assert console.find_ids("tagged", filter="tags = 'bird' AND note = 'not a cell'") == [
        "tagged-2"
    ]
    page.get_by_role("button", name="Remove the tag bird").click()
    expect(page.get_by_role("button", name="bird", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Edit …").click()
    page.get_by_role("button", name="Remove note").click()
    page.get_by_role("button", name="Save one item").click()
    expect(page.get_by_role("button", name="not a cell")).to_have_count(0)
    keys = console.ask("GET", "/v1/models/tagged/metadata-keys")["items"]
    assert {"tags", "tags[]", "note"} & {key["name"] for key in keys} == set()
