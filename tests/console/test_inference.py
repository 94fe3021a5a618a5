"""The page of an inference: every task, neighbours within the filter, erasure while shown."""

import re

from playwright.sync_api import Page, expect

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
        "odd": ("see the raw response",),
    }.items():
        page = open_first(open_page, model)
        for text in texts:
            expect(page.get_by_text(text).first).to_be_visible()


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
    page = open_first(open_page, STREET, "?f=frame_number%20IN%20(60%2C%2061)&s=frame_number")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{STREET}-0060")
    console.ask("DELETE", f"/v1/models/{STREET}/inferences/{STREET}-0061")
    page.keyboard.press("j")
    expect(page.get_by_role("alert")).to_contain_text("It may have been erased")
    expect(page.locator(".large")).to_have_count(0)
    page.get_by_role("link", name="The erasures").click()
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
