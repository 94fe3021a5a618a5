"""Ten tasks of a new analyst, from a model's first page: each takes at most three actions."""

import json
import re

from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import Console, OpenPage
from tests.console.content import SMALL, STREET, STREETS

from .test_questions import copy_link

OVERVIEW = f"#/m/{STREET}/overview"
CAR = "prediction(label = 'car' AND score < 0.6)"
CARS = len(range(0, STREETS, 3))
TAG = "to label"


class Analyst:
    """Counts what a person does: a click, a choice, a key, or a filter with Enter."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.actions = 0

    def _act(self) -> None:
        self.actions += 1
        assert self.actions <= 3

    def click(self, target: Locator) -> None:
        self._act()
        target.click()

    def press(self, key: str) -> None:
        self._act()
        self.page.keyboard.press(key)

    def choose(self, label: str, value: str) -> None:
        self._act()
        self.page.get_by_label(re.compile(f"^{label}")).select_option(value)

    def filter(self, text: str) -> None:
        self._act()
        self.page.get_by_role("combobox", name="Filter in CQL2").fill(text)
        self.page.keyboard.press("Enter")

    def tag(self, name: str) -> None:
        self._act()
        self.page.get_by_role("combobox", name="Tag").fill(name)
        self.page.keyboard.press("Enter")

    def expect_found(self, number: int) -> None:
        found = re.compile(rf"^\s*(60 of )?{number} inferences\s*$")
        expect(self.page.get_by_role("status").filter(has_text=found)).to_be_visible()


def test_unsure_predictions_are_seen_alone_and_as_patches(open_page: OpenPage) -> None:
    page = open_page(OVERVIEW)
    analyst = Analyst(page)
    analyst.filter(CAR)
    analyst.expect_found(CARS)
    tile = page.locator(".tile").first
    expect(tile.locator(".label")).to_have_text(re.compile(r"car\s*0\.50"))
    expect(tile.locator("g.asked")).to_have_count(1)
    analyst.click(page.get_by_role("button", name="Patches"))
    analyst.choose("Sort", "prediction.score")
    expect(page.locator(".tile .crop").first).to_be_visible()


def test_the_cameras_are_compared_and_the_lowest_score_is_found(
    open_page: OpenPage, console: Console
) -> None:
    page = open_page(OVERVIEW)
    analyst = Analyst(page)
    analyst.click(page.get_by_role("link", name="Explore"))
    analyst.choose("Group by", "data_source")
    for camera in ("camera-0", "camera-1", "camera-2"):
        body = {"filter": f"data_source = '{camera}'"}
        count = console.ask("POST", f"/v1/models/{STREET}/inferences/count", body)["count"]
        heading = page.get_by_role("heading", name=f"{camera} {count} inferences")
        expect(heading).to_be_visible()
    page = open_page(OVERVIEW)
    analyst = Analyst(page)
    lowest = page.get_by_role("group", name="Inferences by top score").get_by_role("link").first
    analyst.click(lowest)
    expect(page.locator(".tile .label").last).to_have_text(re.compile(r"person\s*0\.0"))


def test_two_frames_are_seen_side_by_side(open_page: OpenPage) -> None:
    page = open_page(f"#/m/{STREET}")
    analyst = Analyst(page)
    for number in (0, 1):
        page.locator(".tile").nth(number).hover()
        analyst.press("x")
    analyst.click(page.get_by_role("link", name="Compare", exact=True))
    for side in ("A", "B"):
        region = page.get_by_role("region", name=side, exact=True)
        expect(region.locator("polygon.outline").first).to_be_visible()


def test_what_is_shown_is_tagged_found_again_and_exported_as_yolo(
    open_page: OpenPage, console: Console
) -> None:
    page = open_page(OVERVIEW)
    analyst = Analyst(page)
    analyst.filter("frame_number < 30")
    analyst.expect_found(30)
    analyst.press("a")
    expect(page.get_by_text("30 selected")).to_be_visible()
    analyst.tag(TAG)
    expect(page.locator(".tile .tags").first).to_have_text(TAG)
    assert len(console.find_ids(STREET, filter=f"tags = '{TAG}'", limit=100)) == 30

    analyst = Analyst(page)
    analyst.filter(f"tags = '{TAG}'")
    analyst.expect_found(30)
    analyst.click(page.get_by_role("button", name="Export …", exact=True))
    dialog = page.get_by_role("dialog", name="Export")
    expect(dialog.get_by_role("status")).to_have_text(re.compile("^\\s*30 inferences"))
    analyst.choose("Format", "yolo")
    command = dialog.get_by_role("region", name="Command line")
    expect(command).to_contain_text(f"istore export {STREET} --format yolo")
    expect(command).to_contain_text(TAG)


def test_a_view_is_shared_and_a_slow_spell_leads_to_its_calls(open_page: OpenPage) -> None:
    page = open_page(OVERVIEW)
    analyst = Analyst(page)
    analyst.filter(CAR)
    analyst.expect_found(CARS)
    link = copy_link(page)  # two clicks
    assert json.dumps(link).count(STREET) == 1
    again = Analyst(open_page(link.partition("/console/")[2]))
    again.expect_found(CARS)
    page = open_page(OVERVIEW)
    analyst = Analyst(page)
    analyst.click(page.get_by_role("group", name="Inferences and errors").get_by_role("link").first)
    expect(page.get_by_role("link", name="Explore")).to_have_attribute("aria-current", "page")
    expect(page.locator(".tile").first).to_be_visible()


def test_two_models_disagree_and_a_phone_shows_ids_and_scores(open_page: OpenPage) -> None:
    page = open_page()
    analyst = Analyst(page)
    analyst.click(page.get_by_role("link", name="Compare two models"))
    for side, model in (("A", SMALL), ("B", STREET)):
        models = page.get_by_role("group", name=side).get_by_label("Model")
        analyst.click(models)
        models.select_option(model)
    expect(page.locator(".pair").first).to_contain_text("Different top labels")

    page = open_page(narrow=True)
    analyst = Analyst(page)
    analyst.click(page.get_by_role("main").get_by_role("link", name=STREET, exact=True))
    analyst.filter(CAR)
    analyst.expect_found(CARS)
    tile = page.locator(".tile").first
    for part, words in ((".id", STREET), (".label", "0.50")):
        expect(tile.locator(part)).to_contain_text(words)
        assert tile.locator(part).evaluate("part => part.scrollWidth <= part.clientWidth + 1")
    tools = page.get_by_role("button", name=re.compile("^(Fields|Grid|Patches|Table|More)$"))
    tops = {round((each.bounding_box() or {"y": -1})["y"] / 8) for each in tools.all()}
    assert len(tops) == 1, "the tools are one row"
