"""The page of a model's evaluation: figures, and links to what they are of."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.producer import START, Capture

from .conftest import Console, OpenPage
from .watched_page import LOOKS, check_page

_MODEL = "judged"
_PAGE = f"#/m/{_MODEL}/evaluate"
_CELL = "cat predicted as dog: 6, 30.0 %"


@pytest.fixture(scope="module")
def judged(console: Console) -> None:
    """Forty pictures of two cameras, all with truth; the attic's cats are often dogs."""
    captures = [
        Capture(
            number,
            model_id=_MODEL,
            metadata=[
                {"key": "camera", "type": "string", "value": ("hall", "attic")[number % 20 < 10]}
            ],
            predictions=[{"label": "dog" if number >= 20 or number < 6 else "cat", "score": 0.8}],
            extras={"task_type": "Image Classification", "ok": True},
            received_at=START,
        )
        for number in range(40)
    ]
    console.produce(*captures)
    query = f"/v1/models/{_MODEL}/inferences/query"
    items = console.ask("POST", query, {"limit": 100, "sort": "received_at"})["items"]
    assert len(items) == 40
    for item in items:
        number = int(re.findall(r"\d+", item["inference_id"])[-1])
        path = f"/v1/models/{_MODEL}/inferences/uid:{item['uid']}/ground-truth"
        truth = {"label": "dog" if number >= 20 else "cat"}
        console.ask("PUT", path, {"items": [truth]})


def follow(page: Page, link: str) -> str:
    page.get_by_role("link", name=link, exact=True).click()
    expect(page.get_by_role("link", name="Explore")).to_have_attribute("aria-current", "page")
    return page.get_by_role("combobox", name="Filter").input_value()


@pytest.mark.usefixtures("judged")
def test_figures_lead_to_what_they_are_of(open_page: OpenPage) -> None:
    page = open_page(_PAGE)
    expect(page.get_by_role("status").first).to_have_text("40 of 40 inferences have ground truth.")
    expect(page.locator("dl.figures")).to_contain_text("85.0 %")
    assert follow(page, _CELL) == "truth_label = 'cat' AND top_label = 'dog'"
    expect(page.get_by_role("status").first).to_have_text(re.compile(r"^\s*6 inferences\b"))
    page.go_back()
    page.get_by_label("Slice by").select_option("camera")
    rows = page.get_by_role("region", name="Slices").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(page).to_have_url(re.compile(r"g=camera"))
    assert follow(page, "attic") == "camera = 'attic' AND truth_label IS NOT NULL"
    page.go_back()
    box = page.get_by_role("combobox", name="Filter")
    box.fill("camera = 'hall'")
    box.press("Enter")
    expect(page.get_by_role("status").first).to_have_text("20 of 20 inferences have ground truth.")
    expect(page.get_by_text("They are too few")).to_be_visible()


@LOOKS
@pytest.mark.usefixtures("judged")
def test_evaluations_have_no_serious_finding(
    open_page: OpenPage, scheme: str, narrow: bool
) -> None:
    for page in (f"{_PAGE}?g=camera", "#/m/street-detector/evaluate"):
        shown = open_page(page, scheme=scheme, narrow=narrow)
        content = shown.get_by_role("main").locator("dl.figures, .panel h2").first
        expect(content).to_be_visible()
        check_page(shown)
