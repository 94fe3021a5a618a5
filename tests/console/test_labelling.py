"""Truth by keys and by the mouse: picture after picture of a filter, saved behind what is shown."""

import re
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import Console, OpenPage
from .content import STREET
from .test_access import make_key, open_with
from .watched_page import wait_in_page

FILTER = "frame_number%20%3E%2020%20AND%20frame_number%20%3C%2031"
PERSON = [32, 24, 96, 120]


class Labelled:
    """The page of an inference while one labels, and what the store has of it."""

    def __init__(self, page: Page, console: Console, model: str) -> None:
        self.page, self._console, self._model = page, console, model
        expect(page.get_by_role("button", name="End labelling")).to_be_visible()
        expect(page.get_by_role("list", name="Classes").get_by_role("button").first).to_be_visible()

    @property
    def uid(self) -> str:
        found = re.search(r"sel=([0-9a-f-]+)", self.page.url)
        assert found
        return found[1]

    def read(self, uid: str, source: str = "human") -> Any:
        """Return the items of a set, and whether it is complete; None: there is none."""
        path = f"/v1/models/{self._model}/inferences/uid:{uid}/ground-truth"
        sets = self._console.ask("GET", path)["sets"]
        return next(
            (
                ([{n: v for n, v in item.items() if v is not None} for item in one["items"]])
                for one in sets
                if one["source"] == source and one["complete"]
            ),
            None,
        )

    def wait(self, uid: str, *items: dict[str, Any] | None) -> None:
        expected = None if items == (None,) else list(items)
        what = f"{expected} of {uid}"
        wait_in_page(self.page, lambda: self.read(uid) == expected, what=what)

    def drag(self, box: list[int]) -> None:
        """Draw a box, in shares of a thousandth of the picture's width and height."""
        frame = self.page.locator("svg.draws").bounding_box()
        assert frame
        ends = [
            (frame["x"] + frame["width"] * x / 1000, frame["y"] + frame["height"] * y / 1000)
            for x, y in (box[:2], box[2:])
        ]
        self.page.mouse.move(*ends[0])
        self.page.mouse.down()
        self.page.mouse.move(*ends[1], steps=3)
        self.page.mouse.up()


@pytest.fixture
def street(open_page: OpenPage, console: Console) -> Labelled:
    page = open_page(f"#/m/{STREET}?f={FILTER}&s=frame_number")
    expect(page.locator(".tile").first).to_be_visible()
    page.get_by_text("Truth", exact=True).click()
    page.get_by_role("button", name="Label these one by one").click()
    return Labelled(page, console, STREET)


def test_keys_label_a_filtered_set(street: Labelled) -> None:
    page, first = street.page, street.uid
    progress = page.get_by_text(re.compile("of 10 labelled"))
    expect(progress).to_have_text("0 of 10 labelled")
    page.keyboard.press("r")
    expect(page.get_by_text("2 of 10")).to_be_visible()
    second = street.uid
    page.keyboard.press("w")
    expect(progress).to_have_text("2 of 10 labelled")
    expect(page.get_by_text("3 of 10")).to_be_visible()
    car = {"label": "car", "box": [160, 24, 288, 120]}
    street.wait(first, car, {"label": "person", "box": PERSON})
    street.wait(second)
    page.keyboard.press("u")
    expect(progress).to_have_text("1 of 10 labelled")
    assert street.uid == second
    street.wait(second, None)
    page.keyboard.press("k")
    page.keyboard.press("l")
    expect(page.get_by_text("human · anyone")).to_be_visible()
    expect(page.locator("svg .line")).to_have_count(2)
    page.get_by_role("link", name="Disagreements").click()
    filter = page.get_by_role("combobox", name="Filter")
    expect(filter).to_have_value(re.compile("AND truth_label <> top_label$"))
    expect(page.get_by_text(re.compile("^(No matches|Nothing found)"))).to_be_visible()


def test_boxes_are_drawn_named_removed_and_kept(street: Labelled) -> None:
    page = street.page
    for _ in range(3):
        page.keyboard.press("j")
    expect(page.get_by_text("4 of 10")).to_be_visible()
    uid = street.uid
    person, car = {"label": "person", "box": PERSON}, {"label": "car", "box": [160, 24, 288, 120]}
    street.drag([100, 700, 400, 950])
    wait_in_page(page, lambda: len(street.read(uid) or ()) == 3, what="three boxes")
    drawn = street.read(uid)[2]["box"]
    classes = page.get_by_role("list", name="Classes").get_by_role("button")
    page.keyboard.press("2")
    street.wait(uid, car, person, {"label": classes.nth(1).inner_text().split()[0], "box": drawn})
    page.keyboard.press("Delete")
    street.wait(uid, car, person)
    page.get_by_role("button", name="Remove person").click()
    street.wait(uid, car)
    page.get_by_role("button", name="Keep person").click()
    street.wait(uid, car, person)
    page.get_by_label("Another class").fill("van")
    page.locator("ol .item").first.click()
    page.get_by_label("Another class").press("Enter")
    street.wait(uid, car | {"label": "van"}, person)


def test_what_was_not_saved_is_said_and_sent_again(street: Labelled, console: Console) -> None:
    page = street.page
    for _ in range(6):
        page.keyboard.press("j")
    expect(page.get_by_text("7 of 10")).to_be_visible()
    uid = street.uid
    path = f"/v1/models/{STREET}/inferences/uid:{uid}/ground-truth"
    is_busy = Event()
    is_busy.set()

    def refuse(route: Any) -> None:
        if is_busy.is_set() and route.request.method == "PUT":
            problem = {"title": "Busy", "detail": "It is busy.", "status": 503, "errors": []}
            route.fulfill(status=503, json=problem)
        else:
            route.continue_()

    expect(page.get_by_text("Ground truth")).to_be_visible()
    page.route("**/ground-truth", refuse)
    page.keyboard.press("w")
    expect(page.get_by_role("alert")).to_contain_text("It is busy.")
    is_busy.clear()
    street.wait(uid)
    expect(page.get_by_role("alert")).to_have_count(0)
    page.unroute("**/ground-truth")
    console.ask("PUT", path, {"items": [{"label": "tram"}]})
    page.keyboard.press("u")
    expect(page.get_by_role("alert")).to_contain_text("not saved")
    page.get_by_role("button", name="Replace what they said").click()
    street.wait(uid, None)


def test_classes_of_a_picture(open_page: OpenPage, console: Console) -> None:
    page = open_page("#/m/pets?label=1")
    page.locator(".tile").first.click()
    pets = Labelled(page, console, "pets")
    uid = pets.uid
    page.get_by_role("list", name="Classes").get_by_role("button", name="dog").click()
    pets.wait(uid, {"label": "dog"})
    page.keyboard.press("w")
    page.keyboard.type("ferret")
    page.keyboard.press("Enter")
    pets.wait(uid, {"label": "ferret"})
    page.keyboard.press("r")
    pets.wait(uid, {"label": "cat"})


def test_readers_see_truth_and_cannot_set_it(
    open_page: OpenPage, guarded: Console, console: Console
) -> None:
    [inference] = console.ask("POST", "/v1/models/reviews/inferences/query", {})["items"]
    path = f"/v1/models/reviews/inferences/uid:{inference['uid']}/ground-truth"
    console.ask("PUT", path, {"source": "inspector", "items": [{"label": "bad"}]})
    key = make_key(guarded, [{"role": "reader"}])
    page = open_with(open_page, guarded, f"#/m/reviews?sel={inference['uid']}&label=1", key)
    expect(page.get_by_text("inspector · anyone")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Label|Right"))).to_have_count(0)
