"""The overview of a model: each bar leads to Explore with what it counts."""

import re

from playwright.sync_api import Locator, Page, expect

from .conftest import Console, OpenPage
from .content import PLANTED, STREET, STREETS

OVERVIEW = f"#/m/{STREET}/overview"


def list_parts(page: Page, chart: str) -> Locator:
    parts = page.get_by_role("group", name=chart).get_by_role("link")
    expect(parts.first).to_be_attached()
    return parts


def follow(page: Page, part: Locator, *, key: bool = False) -> int:
    """Follow a bar to Explore, check that as many are found as it says, and return the number."""
    said = re.search(r": (\d+) ", part.get_attribute("aria-label") or "")
    if key:
        part.press("Enter")
    else:
        part.click()
    expect(page.get_by_role("link", name="Explore")).to_have_attribute("aria-current", "page")
    words = re.compile(rf"^\s*{said[1] if said else '[0-9]+'} inferences?\b")
    expect(page.get_by_role("status").first).to_have_text(words)
    shown = page.get_by_role("status").first.text_content() or ""
    return int(shown.split()[0])


def test_each_bar_leads_to_what_it_counts(open_page: OpenPage, console: Console) -> None:
    overview = console.ask("GET", f"/v1/models/{STREET}/overview")
    assert overview["inferences"] == STREETS
    page = open_page(OVERVIEW)
    expect(page.locator(".tile")).to_have_count(len(overview["newest"]))
    expect(page.locator(".tile polygon.outline").first).to_be_visible()

    counts = list_parts(page, "Inferences and errors over time")
    assert counts.count() == sum(bar["inferences"] > 0 for bar in overview["bars"])
    assert 0 < follow(page, counts.nth(3)) < STREETS
    expect(page).to_have_url(re.compile(r"#/m/street-detector\?t=2\d{3}.*\.\."))
    page.go_back()

    axis = page.locator("figure").first.locator(".axis li")
    highest = max(bar["inferences"] for bar in overview["bars"])
    assert int(axis.first.inner_text()) >= highest
    expect(page.get_by_role("listitem").filter(has_text="p95").locator(".dot")).to_be_visible()

    scores = list_parts(page, "Inferences by top score")
    bins = [score for score in overview["scores"] if score["inferences"]]
    assert follow(page, scores.first) == bins[0]["inferences"]
    low, high = f"{bins[0]['low']:g}", f"{bins[0]['high']:g}"
    expected = f"top_score >= {low} AND top_score < {high}"
    expect(page.get_by_role("combobox", name="Filter")).to_have_value(expected)
    page.go_back()

    # a band of labels and of latency, by keyboard: Tab reaches a chart, the arrows its bars
    for chart, filter in (
        ("Shares of the top labels", "top_label = '"),
        ("Latency over time", "model_ms "),
        ("Shares of the top scores", "top_score >= "),
    ):
        parts = list_parts(page, chart)
        parts.first.focus()
        page.keyboard.press("ArrowRight")
        expect(parts.nth(1)).to_be_focused()
        assert parts.first.get_attribute("tabindex") == "-1"
        assert follow(page, parts.nth(1), key=True) < STREETS
        box = page.get_by_role("combobox", name="Filter")
        expect(box).to_have_value(re.compile(re.escape(filter)))
        page.go_back()


def test_it_is_the_first_page_and_says_what_needs_attention(
    open_page: OpenPage, console: Console
) -> None:
    page = open_page()
    page.get_by_role("main").get_by_role("link", name="planted", exact=True).click()
    expect(page).to_have_url(re.compile("#/m/planted/overview$"))
    failed = len(PLANTED) // 2
    page.get_by_role("region", name="Needs attention").get_by_role("link").first.click()
    expect(page.get_by_text(f"{failed} inferences", exact=True)).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    page.locator(".tile").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"{len(PLANTED) - 1}")
    page.go_back()
    expect(page).to_have_url(re.compile("#/m/planted/overview$"))

    page = open_page("#/m/planted/overview?t=2020-01-01..2020-01-02")
    page.get_by_role("link", name="Show all time").click()
    expect(page.locator(".tile").first).to_be_visible()

    console.ask("PUT", "/v1/models/idle", {})
    page = open_page("#/m/idle/overview")
    expect(page.get_by_text("Nothing captured yet")).to_be_visible()
    page.get_by_role("combobox", name="Filter").fill("ok")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#/m/idle\?f=ok$"))
