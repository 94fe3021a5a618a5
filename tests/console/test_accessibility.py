"""No page has a serious finding of axe-core, and none is wider than the window."""

from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.servers.waiting import wait_until

from .conftest import Console, OpenPage, run_beside
from .content import SMALL, STREET
from .test_erasures import make_captures, place_hold
from .test_lists import publish
from .watched_page import LOOKS, check_page

MODEL = "operated"
CONTENT = "article, .tile, tbody tr, .large, .cluster, [role=alert], .trouble, .none, [data-step]"


@dataclass(frozen=True, slots=True)
class Operated:
    """The ids of what the pages show, one of each kind."""

    erasure: str
    letter: int
    hold: str


@pytest.fixture(scope="module")
def operated(console: Console) -> Operated:
    console.produce(*make_captures(MODEL, 0, 3))
    request: dict[str, Any] = {"model_ids": [MODEL], "filter": "frame_number = 0"}
    return Operated(
        erasure=console.ask("POST", "/v1/erasures", request)["id"],
        letter=publish_letter(console),
        hold=place_hold(console, MODEL)["id"],
    )


def publish_letter(console: Console) -> int:
    """Publish what is no event, wait for its dead letter, and return the id."""

    def find_newest() -> int:
        items = console.ask("GET", "/v1/dead-letters?state=open&limit=1")["items"]
        return int(items[0]["id"]) if items else 0

    before = find_newest()
    run_beside(publish(console.environment, [b"{"]))
    wait_until(lambda: find_newest() > before, seconds=180, what="the dead letter")
    return find_newest()


def list_pages(console: Console, operated: Operated) -> list[tuple[str, str]]:
    """Return the address of each page, with a selector of its content."""
    inference = console.ask("GET", f"/v1/models/{STREET}/inferences/{STREET}-0009")
    other = console.ask("GET", f"/v1/models/{STREET}/inferences/{STREET}-0008")
    queries = ["", "?v=table", f"?sel={inference['uid']}", "?f=nothing%20%3D%201"]
    queries += [
        f"?sel={inference['uid']}&label=1",
        "?v=patches",
        "?g=data_source",
        f"?sel={inference['uid']}&with={other['uid']}",
    ]
    pages = ["", *(f"#/m/{STREET}{query}" for query in queries), f"#/m/{SMALL}?v=map"]
    pages += [f"#/m/{STREET}/overview", "#/m/planted/overview", "#/m/gone/overview"]
    pages += ["#/m/planted", "#/m/planted?v=table", "#/m/gone", f"#/compare?a={SMALL}&b={STREET}"]
    names = ("accounting", "dead-letters", "holds", "erasures", "exports", "certificates")
    lists = (*names, "certificates/1", "audit", "reconcile", "keys")
    return [
        *((page, CONTENT) for page in pages),
        *((f"#/list/{name}", CONTENT) for name in lists),
        (f"#/list/erasures/{operated.erasure}", "dl.figures"),
        (f"#/list/erasures/new?of=model%3A{MODEL}&f=TRUE", "dl.figures"),
        (f"#/list/dead-letters/{operated.letter}", "pre"),
        (f"#/list/holds/{operated.hold}", "dl.figures"),
        (f"#/list/holds/new?of=model%3A{MODEL}&f=TRUE", "form"),
        ("#/list/retention", "h2"),
        (f"#/list/retention/model%3A{MODEL}?edit=1", "fieldset"),
    ]


@LOOKS
def test_no_page_has_a_serious_finding_or_is_too_wide(
    open_page: OpenPage, console: Console, operated: Operated, scheme: str, narrow: bool
) -> None:
    for fragment, selector in list_pages(console, operated):
        page = open_page(fragment, scheme=scheme, narrow=narrow)
        expect(page.get_by_role("main").locator(selector).first).to_be_visible()
        check_page(page)


@LOOKS
def test_no_dialog_and_no_sign_in_has_a_serious_finding(
    open_page: OpenPage, guarded: Console, scheme: str, narrow: bool
) -> None:
    page = open_page(of=guarded, scheme=scheme, narrow=narrow)
    expect(page.get_by_label("API key")).to_be_visible()
    check_page(page)
    page = open_page("#/list/keys", scheme=scheme, narrow=narrow)
    page.get_by_role("button", name="Create a key").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    check_page(page)
    page = open_page(f"#/m/{STREET}", scheme=scheme, narrow=narrow)
    expect(page.locator(".tile").first).to_be_visible()
    for key in ("j", "x", "?"):
        page.keyboard.press(key)
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    check_page(page)
    for key in ("Escape", "Enter"):
        page.keyboard.press(key)
    page.get_by_role("button", name="Edit …").click()
    expect(page.get_by_role("dialog").get_by_label("Value").first).to_be_visible()
    check_page(page)
