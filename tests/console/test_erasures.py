"""Erasures: counted, confirmed, followed, cancelled, with explained refusals."""

from typing import Any

from playwright.sync_api import Page, expect

from tests.producer import Capture, capture

from .conftest import Console, OpenPage
from .pictures import make_png


def make_captures(model: str, first: int, count: int) -> list[Capture]:
    """Return captures of pictures of a model, each with a `frame_number`."""
    return [
        capture(
            number,
            model_id=model,
            data=make_png(number),
            inference_id=f"{model}-{number}",
            extras={"task_type": "Object Detection", "data_content_type": "image/png", "ok": True},
        )
        for number in range(first, first + count)
    ]


def confirm(page: Page, count: int) -> None:
    page.get_by_label("the number of what goes").fill(str(count))
    page.get_by_role("button", name=f"Erase {count}").click()


def place_hold(console: Console, model: str) -> Any:
    """Place a hold on all inferences of a model, and return it."""
    body = {"name": model, "reason": "a test", "model_id": model, "filter": "frame_number >= 0"}
    return console.ask("POST", "/v1/holds", body)


def test_changed_count_erases_nothing(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("growing", 0, 2))
    page = open_page("#/list/erasures/new?of=model%3Agrowing&f=TRUE")
    expect(page.get_by_role("button", name="Erase 2")).to_be_visible()
    console.produce(*make_captures("growing", 2, 1))
    confirm(page, 2)
    expect(page.get_by_role("alert")).to_contain_text("By now it would be 3, not 2")
    page.get_by_role("alert").get_by_role("button", name="Count again").click()
    expect(page.get_by_role("button", name="Erase 3")).to_be_visible()
    assert console.count("growing") == 3


def test_shows_held_inferences_and_cancels_the_erasure(
    open_page: OpenPage, console: Console
) -> None:
    console.produce(*make_captures("held-cameras", 0, 2))
    page = open_page("#/list/erasures/new?of=model%3Aheld-cameras&f=TRUE")
    expect(page.get_by_role("button", name="Erase 2")).to_be_visible()
    hold = place_hold(console, "held-cameras")
    confirm(page, 2)  # the hold comes before the confirmation
    expect(page.get_by_role("alert")).to_contain_text("By now it would be 0, not 2")
    expect(page.get_by_role("alert")).to_contain_text("Legal holds came first, and keep 2 more")
    request = {"model_ids": ["held-cameras"], "filter": "TRUE"}
    erasure = console.ask("POST", "/v1/erasures", request)
    page = open_page(f"#/list/erasures/{erasure['id']}")
    expect(page.get_by_role("region", name="Progress")).to_contain_text(
        "partly held", timeout=180_000
    )
    expect(page.get_by_text("Legal holds keep 2 of them")).to_be_visible()
    page.get_by_role("button", name="Cancel the erasure …").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the erasure").click()
    expect(page.get_by_role("region", name="Progress")).to_contain_text(
        "It was cancelled", timeout=180_000
    )
    assert console.count("held-cameras") == 2
    console.ask("DELETE", f"/v1/holds/{hold['id']}?reason=over")


def test_explains_that_nothing_matches(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("sentences", 0, 1))
    page = open_page("#/list/erasures/new?of=model%3Asentences")
    page.get_by_role("button", name="By ids").click()
    page.get_by_label("one on each line").fill("nobody-has-this\n")
    page.get_by_role("button", name="Count", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("There is no inference")
    page.get_by_role("button", name="By a subject").click()
    page.get_by_label("Metadata key").fill("data_source")
    page.get_by_label("Value", exact=True).fill("nobody")
    page.get_by_role("button", name="Count", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("there is nothing to erase")
