"""Explore: the filter, the timeline, the table and its columns, the map, and what is selected."""

import re
import subprocess
import sys
import urllib.parse

from playwright.sync_api import Locator, Page, Route, expect

from .conftest import Console, OpenPage
from .content import COMPARED, PLANTED, SMALL, STREET, STREETS
from .watched_page import LOOKS, allow_copying, check_page, open_acts

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
    list_ids(page)
    box = page.get_by_role("combobox", name="Filter")
    box.fill("frame_numer < 2")
    expect(page.locator("mark")).to_have_text("frame_numer")  # before it is asked
    box.press("Enter")
    page.locator("summary", has_text="data_source").click()
    expect(page.locator("details[open] p")).to_have_count(0)  # it says nothing of this key
    expect(page.get_by_role("alert")).to_contain_text("There is no metadata key 'frame_numer'")
    # what was shown before stays, without being taken for an answer
    expect(page.locator("[inert] .tile").first).to_be_visible()
    page.get_by_role("link", name="go back to the previous one").click()
    expect(page.get_by_text(f"{PAGE} of {STREETS} inferences")).to_be_visible()
    page.go_back()
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
    box.press("Escape")  # what is typed waits for Enter
    box.press("Enter")
    expect(page).to_have_url(re.compile("f=data_source%20%3D%20'camera-1'"))
    expect(page.get_by_text("43 inferences", exact=True)).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    assert re.fullmatch(
        r"frame_number > \d+ AND prediction\(label = '\w+' AND score > 0.5\)",
        box.get_attribute("placeholder") or "",
    )
    box.press_sequentially("prediction(label = 'c")
    page.get_by_role("option", name="'car'").click()
    for join in (")", "AND"):
        page.get_by_role("option", name=join, exact=True).click()
    expect(box).to_have_value("prediction(label = 'car' ) AND ")


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


def test_a_silent_api_is_said(open_page: OpenPage) -> None:
    page = open_page()
    page.clock.install()
    page.route("**/inferences/query", lambda _: None)
    with page.expect_request("**/inferences/query"):
        page.get_by_role("main").get_by_role("link", name=STREET, exact=True).click()
    expect(page.get_by_role("combobox", name="Filter")).to_be_visible()
    page.clock.fast_forward(5000)
    said = page.get_by_text("The API has not responded for 5 seconds.")
    expect(said).to_contain_text("You can keep using what this page shows")
    page.get_by_role("link", name="Inference Store").click()
    expect(said).to_have_count(0)


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
    page.get_by_role("slider", name="Highest score").fill("0.7")
    expect(page.locator(".label").first).to_have_text(re.compile(r"car\s+0\.50"))
    page.get_by_role("slider", name="Highest score").fill("1")
    page.get_by_role("slider", name="Lowest score").fill("0.9")
    expect(page.locator("polygon.outline")).to_have_count(1)
    expect(page.locator(".dim .id")).to_have_text([f"{STREET}-0003"])
    page.get_by_role("button", name="Add to filter").click()
    expect(page.locator(".tile")).to_have_count(1)


def test_the_table_sorts(open_page: OpenPage) -> None:
    page = open_page(MODEL)
    page.get_by_role("button", name="Table").click()
    page.get_by_role("columnheader", name="frame_number").get_by_role("button").click()
    expect(page.locator("tbody tr").first).to_contain_text(f"{STREET}-{STREETS - 1:04d}")
    page.get_by_role("columnheader", name="frame_number").get_by_role("button").click()
    expect(page.locator("tbody tr").first).to_contain_text(f"{STREET}-0000")
    expect(page).to_have_url(re.compile("s=frame_number&v=table"))


def test_copied_commands_give_the_same_inferences(open_page: OpenPage) -> None:
    page = open_page(f"{MODEL}?f=frame_number%20%3C%3E%207&s=frame_number")
    list_ids(page)
    # tiles that are far from the window are not there
    expected = [f"{STREET}-{number:04d}" for number in range(STREETS) if number != 7]
    allow_copying(page)
    commands = []
    for kind in ("curl", "Python"):
        page.get_by_text("Copy", exact=True).click()
        page.get_by_role("button", name=kind, exact=True).click()
        expect(page.get_by_role("status").filter(has_text=f"{kind} copied")).to_be_attached()
        commands.append(page.evaluate("navigator.clipboard.readText()"))
        page.reload()
        list_ids(page)
    curl_output = subprocess.check_output(["sh", "-c", commands[0]], text=True)
    assert re.findall(r'"inference_id":"([^"]*)"', curl_output) == expected
    assert (
        subprocess.check_output([sys.executable, "-c", commands[1]], text=True).split() == expected
    )


TABLE = f"#/m/{STREET}?f=frame_number%20%3C%203&s=frame_number&v=table"
HASH = re.compile(r"^\s*[0-9a-f]{64}\s*$")
CHOSEN = f"{TABLE}&c=inference_id%2Cmetadata.frame_number"


def open_menu(page: Page) -> Locator:
    expect(page.locator("tbody tr").first).to_be_visible()
    page.get_by_text("Columns", exact=True).click()
    return page.locator("details[open] .menu")


def list_headings(page: Page) -> list[str]:
    return [text.strip("↑↓ \n") for text in page.locator("thead th").all_text_contents()][1:]


def test_columns_are_chosen_and_moved(open_page: OpenPage) -> None:
    page = open_page(TABLE)
    menu = open_menu(page)
    visible, hidden = menu.get_by_role("list", name="Shown"), menu.get_by_role("list", name="More")
    titles = ("Received", "Top label", "Score", "Predictions", "Model time", "night", "exposure")
    for title in titles:
        visible.get_by_label(title, exact=True).click()
    visible.get_by_label("data_source", exact=True).click()
    visible.get_by_label("camera_position", exact=True).click()
    menu.get_by_label("Search columns").fill("ANGLE")
    angle = hidden.get_by_label("camera_position.angle")
    angle.click()
    expect(visible.get_by_label("camera_position.angle", exact=True)).to_be_focused()
    assert list_headings(page) == ["ID", "frame_number", "camera_position.angle"]
    expect(page.locator("tbody tr").first.locator("td").last).to_have_text("10.5")
    menu.get_by_label("Search columns").fill("")
    hidden.get_by_label("Hash of the input").click()
    visible.get_by_role("button", name="Move Hash of the input to the left").press("Enter")
    expect(page.locator("thead th").nth(3)).to_contain_text("Hash of the input")
    expect(page.locator("tbody tr").first.locator("td").nth(3)).to_have_text(HASH)
    expect(page).to_have_url(re.compile("c=inference_id"))
    other = open_page(page.url.partition("/console/")[2])
    expect(other.locator("tbody tr")).to_have_count(3)
    assert list_headings(other) == list_headings(page)
    menu.get_by_role("button", name="Reset to default columns").click()
    expect(page.locator("thead th", has_text="Top label")).to_be_visible()
    expect(page).not_to_have_url(re.compile("c="))


def test_a_saved_view_keeps_them(open_page: OpenPage, console: Console) -> None:
    page = open_page(CHOSEN)
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_text("Views", exact=True).click()
    page.get_by_role("button", name="Save this view …").click()
    page.get_by_label("Name").fill("two columns")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    [saved] = [view for view in console.ask("GET", "/v1/views")["items"] if view["columns"]]
    assert saved["columns"] == ["inference_id", "metadata.frame_number"]
    other = open_page(f"#/view/{saved['id']}")
    expect(other.locator("tbody tr")).to_have_count(3)
    assert list_headings(other) == ["ID", "frame_number"]
    console.send("DELETE", f"/v1/views/{saved['id']}")


def test_a_key_with_markup_and_commas_is_a_column(open_page: OpenPage, console: Console) -> None:
    page = open_page("#/m/planted?v=table")
    menu = open_menu(page)
    menu.get_by_role("list", name="Shown").get_by_label("Received", exact=True).click()
    assert page.title() == "planted · Inference Store"
    key = f"key {PLANTED[0][:60]}"
    expect(page.locator("thead th", has_text=key)).to_be_visible()
    page.goto(f"{console.address}/console/#/m/planted?v=table&c=metadata.a%252Cb%2Cinference_id")
    expect(page.locator("thead th").nth(1)).to_have_text("a,b")
    expect(page.locator("thead th").nth(2)).to_contain_text("ID")


@LOOKS
def test_the_menu_has_no_serious_finding(open_page: OpenPage, scheme: str, narrow: bool) -> None:
    page = open_page(CHOSEN, scheme=scheme, narrow=narrow)
    expect(open_menu(page).get_by_role("button", name="Reset to default columns")).to_be_visible()
    check_page(page)


MAP = f"#/m/{SMALL}?v=map"


def test_the_map_shows_where_and_filters(open_page: OpenPage) -> None:
    page = open_page(MAP)
    clusters = page.locator("svg .cluster")
    expect(clusters).to_have_count(COMPARED)
    expect(page.get_by_text(f"{COMPARED} inferences in view")).to_be_visible()
    expect(page.locator(".names").get_by_text("Berlin")).to_be_attached()
    expect(page.get_by_text("Centre of the map: Berlin.")).to_be_visible()
    expect(page.locator(".bar text", has_text=re.compile(r"^\d+ k?m$"))).to_be_visible()
    page.get_by_role("button", name="Zoom in").click()
    expect(clusters).to_have_count(6)
    page.get_by_role("button", name="Filter to this area").click()
    expect(page.get_by_text("6 inferences", exact=True)).to_be_visible()
    expect(clusters).to_have_count(6)
    clusters.first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 inference", exact=True)).to_be_visible()
    expect(clusters).to_have_count(1)
    # one place is shown with the region around it
    expect(page.locator(".bar text", has_text=re.compile(r"^\d+ km$"))).to_be_visible()
    assert "S_INTERSECTS(location, BBOX(" in page.url.replace("%20", " ").replace("%2C", ",")


def test_a_model_without_places_has_no_map(open_page: OpenPage) -> None:
    page = open_page(f"#/m/{STREET}")
    expect(page.get_by_role("button", name="Table")).to_be_visible()
    expect(page.get_by_role("button", name="Map")).to_have_count(0)


def test_disagreements_come_first(open_page: OpenPage) -> None:
    def answer_page(route: Route) -> None:
        if (route.request.post_data_json or {}).get("cursor"):
            problem = {"title": "Too slow", "detail": "", "status": 400}
            route.fulfill(status=400, json=problem, content_type="application/problem+json")
        else:
            route.fulfill(json=route.fetch().json() | {"next": "older"})

    page = open_page()
    page.route(f"**/{SMALL}/inferences/query", answer_page)
    page.goto(f"{page.url.partition('#')[0]}#/compare?a={SMALL}&b={STREET}")
    expect(
        page.get_by_text(
            f"{COMPARED} of A's newest {COMPARED} inferences have an input that B also saw"
        )
    ).to_be_visible()
    first = page.locator(".pair").first
    expect(first).to_contain_text("Different top labels")
    expect(first.locator("img")).to_have_count(2)
    expect(page.get_by_role("img", name="Share of inferences by top score")).to_be_visible()
    page.get_by_role("button", name="Compare older ones too").click()
    expect(page.get_by_role("alert")).to_contain_text("Too slow")
    expect(first).to_contain_text("Different top labels")


SELECTED = f"#/m/{STREET}?f=frame_number%20%3C%206&s=frame_number"


def expect_selected(page: Page, count: int) -> None:
    """Expect the bar to show that `count` inferences are selected."""
    bar = page.get_by_role("region", name="Selection")
    expect(bar.get_by_role("status").first).to_have_text(f"{count} selected")


def test_the_keys_are_shown(open_page: OpenPage) -> None:
    page = open_page()
    expect(page.get_by_role("heading", name="Models", level=1)).to_be_visible()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    for word in (
        "Go to the filter",
        "The next inference within",
        "Select or deselect this inference",
        "Enlarge",
    ):
        expect(dialog.get_by_text(word)).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_tiles_are_selected_by_keyboard(open_page: OpenPage, console: Console) -> None:
    page = open_page(SELECTED)
    expect(page.locator(".tile")).to_have_count(6)
    for key in ("j", "x", "j", "j", "x"):
        page.keyboard.press(key)
    expect_selected(page, 2)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{STREET}-0002")
    expect(page.get_by_role("button", name="Selected")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect_selected(page, 3)
    allow_copying(page)
    page.get_by_role("button", name="Copy IDs").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    expected = [f"{STREET}-000{number}" for number in (0, 2, 3)]
    assert page.evaluate("navigator.clipboard.readText()").split() == expected
    open_acts(page, "these")
    assert find_linked(page, console, "Erase these") == expected
    assert find_linked(page, console, "Hold these") == expected
    page.keyboard.press("Escape")
    expect(page.locator(".tile").first).to_be_visible()
    expect_selected(page, 3)
    page.keyboard.press("Escape")
    expect(page.get_by_role("region", name="Selection")).to_have_count(0)


def find_linked(page: Page, console: Console, name: str) -> list[str]:
    """Return the ids of the inferences that a link of the bar selects."""
    link = page.get_by_role("link", name=re.compile(name)).get_attribute("href") or ""
    search = urllib.parse.parse_qs(link.partition("?")[2])
    assert search["of"] == [f"model:{STREET}"]
    return console.find_ids(STREET, filter=search["f"][0], sort="frame_number")


def test_rows_are_selected_by_their_boxes(open_page: OpenPage) -> None:
    page = open_page(f"{SELECTED}&v=table")
    page.get_by_role("checkbox", name=f"Select {STREET}-0001").check()
    page.locator("tbody tr").nth(3).hover()
    page.keyboard.press("x")
    expect_selected(page, 2)
    page.get_by_role("button", name="Grid").click()
    expect(page.locator(".picked")).to_have_count(2)
    page.get_by_role("button", name="Select nothing").click()
    expect(page.locator(".picked")).to_have_count(0)
