"""The grid: what the filter asks for, patches, order, groups, and two inferences side by side."""

import re
from typing import Any
from uuid import UUID

from playwright.sync_api import Route, expect

from .conftest import Console, OpenPage
from .content import SMALL, STREET, STREETS
from .test_explore import list_ids
from .watched_page import wait_in_page

MODEL = f"#/m/{STREET}"
CAR = f"{MODEL}?f=frame_number%20%3D%203%20AND%20prediction(label%20%3D%20'car')"


def test_what_the_filter_asks_for_is_named_and_the_rest_is_dim(open_page: OpenPage) -> None:
    page = open_page(CAR)
    tile = page.locator(".tile")
    expect(tile.locator(".label")).to_have_text(re.compile(r"^\s*car\s*0\.50\s*$"))
    expect(tile.locator("g.asked")).to_have_count(1)
    expect(tile.locator("g.dim:not(.asked)")).to_have_count(1)
    page.get_by_role("slider", name="Highest score").fill("0.4")
    expect(tile.locator("polygon.outline")).to_have_count(1)
    page.get_by_role("slider", name="Highest score").fill("1")
    tile.click()
    first = page.get_by_role("listitem").filter(has_text="matches")
    expect(first).to_have_text(re.compile(r"car\s+matches\s+0\.50"))
    expect(page.locator(".large g.asked")).to_have_count(1)
    # opened by its link alone it says so too
    deep = open_page(page.url.partition("/console/")[2] + "&t=..2000-01-01")
    expect(deep.locator(".large g")).to_have_count(2)
    expect(deep.get_by_text("matches", exact=True)).to_have_count(0)
    deep = open_page(page.url.partition("/console/")[2] + "&s=frame_number")
    expect(deep.get_by_text("matches", exact=True)).to_have_count(1)

    def answer_text(route: Route) -> None:
        body: Any = route.request.post_data_json
        line = {"content_type": "text/plain", "data": "e30=", "problem": None}
        route.fulfill(json={"items": [{"uid": uid} | line for uid in body["uids"]]})

    deep.route("**/inferences/thumbnails", answer_text)
    deep.goto(f"{deep.url.partition('#')[0]}{CAR}")
    expect(deep.get_by_text("The input is text, not a picture")).to_be_visible()


def test_patches_are_sorted_and_lead_to_their_prediction(open_page: OpenPage) -> None:
    page = open_page(f"{MODEL}?v=patches&f=prediction(label%20%3D%20'person')&s=prediction.score")
    patches = page.locator(".tile")
    expect(patches.first.locator("img")).to_be_visible()
    count = page.get_by_role("toolbar", name="Grid").get_by_role("status")
    expect(count).to_have_text(re.compile(r"^\d+ patches"))
    scores = [float(text) for text in page.locator(".tile b").all_text_contents()]
    assert scores[:8] == [0, 0, 0.01, 0.01, 0.02, 0.02, 0.03, 0.03]
    assert scores == sorted(scores)
    shown = patches.first.evaluate(
        """(tile) => {
            const [crop, picture] = [".crop", "img"].map(
                (name) => tile.querySelector(name).getBoundingClientRect());
            const scale = 320 / picture.width;
            return [(crop.x - picture.x) * scale, (crop.y - picture.y) * scale, crop.width * scale];
        }"""
    )
    # around a box of 64 × 96 at (32, 24)
    assert [round(number) for number in shown] == [2, 10, 125]
    patches.nth(2).hover()
    page.keyboard.press("x")
    expect(page.get_by_text("1 selected")).to_be_visible()
    page.get_by_label("Sort", exact=True).select_option("prediction.area")
    expect(page).to_have_url(re.compile(r"s=prediction\.area"))
    expect(patches.first.locator("img")).to_be_visible()
    patches.first.click()
    expect(page.locator(".large g.chosen")).to_have_count(1)
    expect(page).to_have_url(re.compile("&p=0"))


def test_the_grid_is_sorted_grouped_and_sized_by_its_link(
    open_page: OpenPage, console: Console
) -> None:
    page = open_page(MODEL)
    list_ids(page)
    page.get_by_label("Sort", exact=True).select_option("frame_number")
    expect(page.locator(".tile .id").first).to_have_text(f"{STREET}-{STREETS - 1:04d}")
    page.get_by_role("button", name="Descending").click()
    expect(page.locator(".tile .id").first).to_have_text(f"{STREET}-0000")
    expect(page.locator(".tile time").first).to_have_text(re.compile(r"\d\d:\d\d:\d\d$"))
    width = page.locator(".tile").first.evaluate("tile => tile.clientWidth")
    page.get_by_role("slider", name="Size of tiles").fill("2")
    expect(page).to_have_url(re.compile("s=frame_number&z=l"))
    assert page.locator(".tile").first.evaluate("tile => tile.clientWidth") > width
    page.get_by_label("Group by").select_option("data_source")
    again = open_page(page.url.partition("/console/")[2])
    for source in ("camera-0", "camera-1", "camera-2"):
        filter = {"filter": f"data_source = '{source}'"}
        count = console.ask("POST", f"/v1/models/{STREET}/inferences/count", filter)["count"]
        heading = again.get_by_role("heading", name=f"{source} {count} inferences")
        expect(heading).to_be_visible()
        row = heading.locator("xpath=following-sibling::div[1]")
        row.scroll_into_view_if_needed()
        ids = console.find_ids(STREET, **filter, sort="frame_number", limit=12)
        expect(row.locator(".id")).to_have_text(ids)
    # an inference in several groups has its picture in each
    labels = open_page(f"{MODEL}?g=label&f=frame_number%20%3C%204")
    for label, count in (("person", 4), ("car", 2)):
        heading = labels.get_by_role("heading", name=f"{label} {count} inferences")
        expect(heading.locator("xpath=following-sibling::div[1]").locator("img")).to_have_count(
            count
        )
    again.get_by_role("link", name="camera-1").click()
    expect(again.get_by_role("combobox", name="Filter")).to_have_value("data_source = 'camera-1'")


def test_what_is_far_from_the_window_is_let_go_and_comes_again(
    open_page: OpenPage, console: Console
) -> None:
    question = {"limit": 1, "include": ["metadata", "predictions"]}
    answer = console.ask("POST", f"/v1/models/{SMALL}/inferences/query", question)
    [row] = answer["items"]
    asked: list[int] = []
    is_away = False

    def answer_page(route: Route) -> None:
        body: Any = route.request.post_data_json
        start, limit = int(body.get("cursor", 0)), body["limit"]
        if is_away and start:
            return
        asked.append(start)
        is_again = asked.count(start) > 1
        numbers = [n for n in range(start, start + limit) if not (is_again and n == 61)]  # erased
        ids = [{"uid": str(UUID(int=n)), "inference_id": f"row-{n}"} for n in numbers]
        items = [row | own | {"data_storage_key": None} for own in ids]
        route.fulfill(json=answer | {"items": items, "next": str(start + limit)})

    page = open_page("#/list/keys")
    page.route("**/inferences/query", answer_page)
    page.goto(f"{console.address}/console/#/m/{SMALL}")
    main, tiles = page.get_by_role("main"), page.locator(".tile")

    def is_far() -> bool:
        main.evaluate("main => main.scrollTo(0, 1e9)")
        digits = re.match(r"[\d,]+", page.locator(".summary b").inner_text())
        return digits is not None and int(digits[0].replace(",", "")) > 4000

    expect(tiles.first.locator("time")).to_be_visible()
    wait_in_page(page, is_far, what="4,000 rows")
    assert tiles.count() < 500
    before = asked.count(0)
    main.evaluate("main => main.scrollTo(0, 0)")
    expect(tiles.first.locator(".id")).to_have_text("row-0")
    assert asked.count(0) == before
    main.evaluate("main => main.scrollTo(0, 2500)")
    expect(page.locator(".id", has_text=re.compile("^row-62$"))).to_be_visible()
    expect(page.locator(".id", has_text=re.compile("^row-61$"))).to_have_count(0)
    expect(page.locator(".tile:not(:has(.id))")).to_have_count(0)
    page.keyboard.press("a")
    expect(page.get_by_role("region", name="Selection").get_by_role("status").first).to_have_text(
        re.compile(r"^4,\d+ selected$")
    )
    # a table has all rows from the first on, though a page is on its way
    is_away = True
    main.evaluate("main => main.scrollTo(0, 1e9)")
    expect(page.get_by_role("button", name="Loading …")).to_be_visible()
    page.get_by_role("button", name="Table").click()
    expect(page.locator("tbody tr")).to_have_count(60)
    expect(page.locator(".summary b")).to_have_text(re.compile(r"^60\b"))


def test_two_that_are_selected_are_seen_side_by_side(open_page: OpenPage) -> None:
    page = open_page(f"{MODEL}?f=frame_number%20IN%20(3%2C%204)&s=frame_number")
    list_ids(page)
    for number in (0, 1):
        page.locator(".tile").nth(number).hover()
        page.keyboard.press("x")
    page.get_by_role("link", name="Compare", exact=True).click()
    for side, shapes in (("A", 2), ("B", 1)):
        section = page.get_by_role("region", name=side, exact=True)
        expect(section.locator("polygon.outline")).to_have_count(shapes)
        expect(section.locator("img")).to_be_visible()
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="150 %")).to_have_count(2)
    boxes = page.locator(".zoom")
    box = boxes.first.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 30, box["y"] + box["height"] / 2, steps=3)
    page.mouse.up()
    moved = page.locator(".sheet").evaluate_all(
        "sheets => sheets.map((each) => each.style.transform)"
    )
    assert moved[0] == moved[1] != "translate(0%, 0%) scale(1.5)"
    expect(page.get_by_role("row", name="frame_number differs 3 4")).to_be_visible()
    rows = page.locator("tbody tr").all_text_contents()
    assert [("differs" in row) for row in rows] == sorted(["differs" in row for row in rows])[::-1]
    expect(page.get_by_role("row", name="Width 320 320")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".tile")).to_have_count(2)
