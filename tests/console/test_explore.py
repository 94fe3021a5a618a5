"""Finding inferences: tiles with boxes, the filter, the timeline, fields, the table, links."""

import re
import subprocess
import sys

from playwright.sync_api import Page, expect

from .conftest import OpenPage
from .content import STREET, STREETS
from .watched_page import allow_copying

MODEL = f"#/m/{STREET}"
PAGE, NEXT_PAGE = 60, 120


def list_ids(page: Page) -> list[str]:
    expect(page.locator(".tile").first).to_be_visible()
    return page.locator(".tile .id").all_text_contents()


def test_draws_boxes_where_the_model_said(open_page: OpenPage) -> None:
    page = open_page(f"{MODEL}?f=frame_number%20%3D%203")
    tile = page.locator(".tile")
    expect(tile).to_have_count(1)
    expect(tile.locator("polygon.outline")).to_have_count(2)
    expect(tile.locator("img")).to_be_visible()
    boxes = tile.evaluate(
        """(tile) => {
            const boundsOf = (element) => element.getBoundingClientRect();
            const picture = boundsOf(tile.querySelector("img"));
            const boxes = [...tile.querySelectorAll("polygon.outline")].map(boundsOf);
            const scale = 320 / picture.width;
            return boxes.map((box) => [
                (box.x - picture.x) * scale, (box.y - picture.y) * scale,
                box.width * scale, box.height * scale,
            ]);
        }"""
    )
    expected = {(32, 24, 64, 96), (160, 24, 128, 96)}
    assert {tuple(round(number / 8) * 8 for number in box) for box in boxes} == expected


def test_click_fixes_a_fault_in_the_filter(open_page: OpenPage) -> None:
    page = open_page(MODEL)
    box = page.get_by_role("combobox", name="Filter")
    box.fill("frame_numer < 2")
    box.press("Enter")
    expect(page.locator("mark")).to_have_text("frame_numer")
    expect(page.get_by_role("alert")).to_contain_text("There is no metadata key 'frame_numer'")
    expect(page.locator(".tile")).to_have_count(0)
    page.get_by_role("button", name="Use frame_number").click()
    expect(page.get_by_text("2 inferences", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile("f=frame_number%20%3C%202"))


def test_names_and_values_are_completed(open_page: OpenPage) -> None:
    page = open_page(MODEL)
    box = page.get_by_role("combobox", name="Filter")
    box.press_sequentially("data_s")
    expect(page.get_by_role("option", name="data_source string")).to_be_visible()
    box.press("ArrowDown")
    box.press("Enter")
    box.press_sequentially("= ")
    page.get_by_role("option", name="'camera-1'").click()
    box.press("Escape")
    box.press("Enter")
    expect(page).to_have_url(re.compile("f=data_source%20%3D%20'camera-1'"))
    expect(page.get_by_text("43 inferences", exact=True)).to_be_visible()
    box.fill("")
    box.press_sequentially("prediction(label = 'c")
    page.get_by_role("option", name="'car'").click()
    expect(box).to_have_value("prediction(label = 'car' ")


def test_what_is_typed_at_once_follows_the_suggestion(open_page: OpenPage) -> None:
    """Also where the next frame is late, as on a busy machine."""
    page = open_page(MODEL)
    box = page.get_by_role("combobox", name="Filter")
    box.press_sequentially("data_s")
    expect(page.get_by_role("option", name="data_source string")).to_be_visible()
    page.evaluate(
        "() => { window.late = []; window.requestAnimationFrame = (draw) => late.push(draw); }"
    )
    box.press("ArrowDown")
    box.press("Enter")
    box.press_sequentially("= 'camera-1'")
    page.evaluate("() => late.forEach((draw) => draw())")
    box.press_sequentially(" AND ok")
    expect(box).to_have_value("data_source = 'camera-1' AND ok")


def test_a_field_is_counted_when_it_is_opened_and_filters(open_page: OpenPage) -> None:
    page = open_page(MODEL)
    fields = page.get_by_role("complementary", name="Fields")
    with page.expect_request(lambda request: "top" in (request.post_data or "")):
        fields.locator("summary", has_text="data_source").click()
    fields.get_by_role("button", name="camera-2").click()
    expect(page.get_by_role("combobox", name="Filter")).to_have_value("data_source = 'camera-2'")
    expect(page.get_by_text("43 inferences", exact=True)).to_be_visible()


def test_a_brush_over_the_timeline_chooses_a_time(open_page: OpenPage) -> None:
    page = open_page(MODEL)
    expect(page.get_by_text(f"{PAGE} of {STREETS} inferences")).to_be_visible()
    expect(page.get_by_role("complementary", name="Fields")).to_be_visible()
    line = page.get_by_role("img", name="Inferences over time")
    area = line.bounding_box()
    assert area is not None
    page.mouse.move(area["x"] + 10, area["y"] + 20)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] / 3, area["y"] + 20)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"t=2\d{3}-.*\.\."))
    expect(page.get_by_role("status").first).to_have_text(re.compile(r"^\s*[3-5]\d inferences"))
    page.go_back()
    expect(page.get_by_text(f"{PAGE} of {STREETS} inferences")).to_be_visible()


def test_the_score_hides_boxes_and_becomes_a_filter(open_page: OpenPage) -> None:
    page = open_page(f"{MODEL}?f=frame_number%20IN%20(3%2C%2096)")
    expect(page.locator("polygon.outline")).to_have_count(4)
    page.get_by_role("slider").fill("0.9")
    expect(page.locator("polygon.outline")).to_have_count(1)
    page.get_by_role("button", name="Make it a filter").click()
    expect(page.locator(".tile")).to_have_count(1)


def test_the_table_sorts(open_page: OpenPage) -> None:
    page = open_page(MODEL)
    page.get_by_role("button", name="Table").click()
    page.get_by_role("columnheader", name="frame_number").get_by_role("button").click()
    expect(page.locator("tbody tr").first).to_contain_text(f"{STREET}-{STREETS - 1:04d}")
    page.get_by_role("columnheader", name="frame_number").get_by_role("button").click()
    expect(page.locator("tbody tr").first).to_contain_text(f"{STREET}-0000")
    expect(page).to_have_url(re.compile("s=frame_number&v=table"))


def show_all(page: Page, count: int) -> None:
    for shown in (*range(PAGE + NEXT_PAGE, count, NEXT_PAGE), count):
        page.get_by_role("main").evaluate("main => main.scrollTo(0, main.scrollHeight)")
        expect(page.locator(".tile")).to_have_count(shown)


def test_copied_commands_give_the_same_inferences(open_page: OpenPage) -> None:
    page = open_page(f"{MODEL}?f=frame_number%20%3C%3E%207&s=frame_number")
    list_ids(page)
    show_all(page, STREETS - 1)
    expected = list_ids(page)
    allow_copying(page)
    commands = []
    for kind in ("curl", "Python"):
        page.get_by_text("Copy", exact=True).click()
        page.get_by_role("button", name=kind).click()
        expect(page.get_by_role("status").filter(has_text=f"{kind} copied")).to_be_attached()
        commands.append(page.evaluate("navigator.clipboard.readText()"))
        page.reload()
        list_ids(page)
    curl_output = subprocess.check_output(["sh", "-c", commands[0]], text=True)
    assert re.findall(r'"inference_id":"([^"]*)"', curl_output) == expected
    assert (
        subprocess.check_output([sys.executable, "-c", commands[1]], text=True).split() == expected
    )
