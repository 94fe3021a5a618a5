"""Pages at rest: arrivals over one stream for all windows, and sessions that end."""

import re
import time
from itertools import count
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Page, Request, Route, expect

from inference_store.api.authentication import WATCHED_SECONDS
from tests.console.test_access import enter, sign_out_elsewhere
from tests.producer import Capture
from tests.servers.environment import PREFIX
from tests.servers.waiting import wait_until

from .conftest import Console, OpenPage, produce, run_beside
from .content import PLANTED, STREET
from .watched_page import AskedRequests, wait_in_page

MODEL = "arrivals"
PAGE = f"#/m/{MODEL}?live=1"
STREAMS, QUERIES = "**/inferences/follow*", "**/inferences/query"
BEGIN = 'event: begin\ndata: {"at": "2026-11-01T00:00:00Z"}\n\n'
"""The whole of a stream that is cut off. The page begins the next one `PAUSE_MS` later."""
PAUSE_MS = 5000
_NUMBERS = count(1_000_000)


def produce_arrival(console: Console) -> str:
    number = next(_NUMBERS)
    capture = Capture(number, model_id=MODEL, inference_id=f"arrival-{number}")
    topic = console.environment[f"{PREFIX}KAFKA_TOPIC"]
    run_beside(produce(console.environment, topic, [capture]))
    return f"arrival-{number}"


def produce_known_arrival(console: Console) -> str:
    """Produce an inference, wait until it is indexed, and return its id."""
    inference_id = produce_arrival(console)
    wait_until(lambda: is_known(console, inference_id), seconds=180, what="it to be indexed")
    return inference_id


@pytest.fixture(scope="module")
def arrival(console: Console) -> str:
    """The id of the model's first indexed inference."""
    return produce_known_arrival(console)


def is_known(console: Console, inference_id: str) -> bool:
    models = console.ask("GET", "/v1/models")["items"]
    if MODEL not in {model["model_id"] for model in models}:
        return False
    return inference_id in console.find_ids(MODEL)


def wait_live(page: Page) -> None:
    """Wait until the page follows arrivals."""
    expect(page.locator("button .lamp.on")).to_be_visible()


def test_an_arrival_needs_no_reload(open_page: OpenPage, console: Console, arrival: str) -> None:
    page = open_page(f"#/m/{MODEL}")
    expect(page.get_by_text(arrival)).to_be_visible()
    page.get_by_role("button", name="Live").click()
    wait_live(page)
    expect(page.get_by_text(produce_arrival(console))).to_be_visible()


@pytest.mark.usefixtures("arrival")
def test_a_range_with_an_end_cannot_be_followed(open_page: OpenPage) -> None:
    page = open_page(f"{PAGE}&t=2020-01-01T00:00:00Z..2020-01-02T00:00:00Z")
    expect(page.get_by_role("button", name="Live")).to_be_disabled()


def test_ten_windows_share_one_stream(open_page: OpenPage, console: Console, arrival: str) -> None:
    first = open_page(PAGE)
    wait_live(first)
    address = first.url
    others = [first.context.new_page() for _ in range(9)]
    for page in others:
        page.goto(address)
        wait_live(page)
        expect(page.get_by_text(arrival)).to_be_visible()
    for page in (first, *others[:-1]):
        expect(page.get_by_role("button", name="live in another window")).to_be_visible()
    inference_id = produce_arrival(console)
    for page in (first, others[-1]):
        expect(page.get_by_text(inference_id)).to_be_visible()


@pytest.mark.usefixtures("arrival")
def test_an_arrival_below_the_top_is_announced(open_page: OpenPage, console: Console) -> None:
    page = open_page(f"{PAGE}&s=received_at")
    wait_live(page)
    inference_id = produce_known_arrival(console)
    # That of the test before may be announced too, and earlier.
    page.get_by_role("button", name=re.compile(r"^Show \d+ new$")).click()
    expect(page.get_by_text(inference_id)).to_be_visible()


class CutStreams:
    """Streams of a page that mention no arrival, each cut off; the page begins another later."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._asked = self._ended = self._advanced = 0
        self.is_silent = False
        """Whether those to come are never answered."""
        page.clock.install()
        page.on("requestfinished", self._note_end)
        page.route(STREAMS, self._answer)

    def _answer(self, route: Route) -> None:
        self._asked += 1
        if not self.is_silent:
            route.fulfill(content_type="text/event-stream", body=BEGIN)

    def _note_end(self, request: Request) -> None:
        self._ended += "/inferences/follow" in request.url

    def wait_for_more(self, count: int) -> None:
        """Wait until the page asks for so many more; what came before the last is taken by then.

        The page's clock is moved once for each stream that has ended. It also runs by itself: moved
        at every look, it would reach the limit of the page's own requests.
        """
        expected = self._asked + count

        def are_asked() -> bool:
            if self._advanced < self._ended:
                self._advanced = self._ended
                self._page.clock.run_for(PAUSE_MS)
            return bool(self._page.title()) and self._asked >= expected

        wait_until(are_asked, seconds=180, what="the next streams")


def open_with_cut_streams(
    open_page: OpenPage, console: Console, arrival: str
) -> tuple[Page, CutStreams]:
    """Open a page that follows arrivals and is told of none."""
    page = open_page("#/list/accounting")  # follows nothing
    streams = CutStreams(page)
    page.goto(f"{console.address}/console/{PAGE}")
    expect(page.get_by_text(arrival)).to_be_visible()
    return page, streams


def test_what_arrives_while_the_stream_is_cut_off_is_shown(
    open_page: OpenPage, console: Console, arrival: str
) -> None:
    page, streams = open_with_cut_streams(open_page, console, arrival)
    inference_id = produce_known_arrival(console)
    streams.wait_for_more(2)
    expect(page.get_by_text(inference_id)).to_be_visible()


def test_what_arrives_while_a_page_is_on_its_way_is_shown_after_it(
    open_page: OpenPage, console: Console, arrival: str
) -> None:
    page, streams = open_with_cut_streams(open_page, console, arrival)
    held: list[tuple[Route, APIResponse]] = []
    page.route(QUERIES, lambda route: held.append((route, route.fetch())))
    streams.wait_for_more(2)
    wait_in_page(page, lambda: bool(held), what="a page on its way")
    inference_id = produce_known_arrival(console)
    streams.wait_for_more(2)
    streams.is_silent = True
    streams.wait_for_more(1)
    page.unroute(QUERIES)
    for route, answer in held:
        route.fulfill(response=answer)
    expect(page.get_by_text(inference_id)).to_be_visible()


SIGNED_IN_PAGE = f"#/m/{STREET}?f=frame_number%20%3C%205"
LOOK = "/v1/me"
PAUSE = 1.2
"""Seconds between two looks of a page."""
LOOKS = 9
"""So many of three windows take three pauses, unless all windows look at once each time: some times
they do, on a busy machine."""


def make_key(console: Console) -> Any:
    body = {"name": "leaving", "grants": [{"role": "reader"}]}
    return console.ask("POST", "/v1/keys", body)


def is_look(request: Request) -> bool:
    return request.url.endswith(LOOK)


def turn(page: Page, *, hidden: bool) -> None:
    """Hide a page, or show it again, as another tab before it would."""
    page.evaluate(
        "hidden => {"
        " Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def began_at(look: Request) -> float:
    """When the browser sent a look that was answered, in seconds since 1970."""
    return look.timing["startTime"] / 1000


def wait_ended(page: Page) -> None:
    """Wait until a page says that its session is over, and see that it shows nothing else."""
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("You are signed out")
    expect(alert).to_contain_text("ask the administrator of the store")
    expect(page.get_by_label("API key")).to_be_visible()
    expect(page.locator(".tile")).to_have_count(0)
    expect(page.locator("body")).not_to_contain_text(STREET)


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_page_at_rest_says_that_its_key_was_revoked(
    open_page: OpenPage, console: Console, guarded: Console, is_elsewhere: bool
) -> None:
    """Also if another process of the api revoked it: its key is looked up again for such a page."""
    key = make_key(guarded)
    page = open_page(SIGNED_IN_PAGE, of=guarded)
    enter(page, key["key"])
    expect(page.locator(".tile")).to_have_count(5)
    looks: list[Request] = []
    page.on("requestfinished", lambda request: looks.append(request) if is_look(request) else None)
    (console if is_elsewhere else guarded).ask("POST", f"/v1/keys/{key['id']}/revoke")
    known_until = time.time() + WATCHED_SECONDS
    wait_ended(page)
    later = [look.response() for look in looks if began_at(look) > known_until]
    statuses = {answer and answer.status for answer in later}
    assert statuses <= {401}, "the key was not looked up again"
    # the same page goes on with another key
    enter(page, make_key(guarded)["key"])
    expect(page.locator(".tile")).to_have_count(5)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_one_of_several_windows_looks_for_all(open_page: OpenPage, guarded: Console) -> None:
    first = open_page(SIGNED_IN_PAGE, of=guarded)
    enter(first, make_key(guarded)["key"])
    expect(first.locator(".tile")).to_have_count(5)
    others = [first.context.new_page() for _ in range(2)]
    for page in others:
        page.goto(first.url)
        expect(page.locator(".tile")).to_have_count(5)
    looks = [first.context.wait_for_event("requestfinished", is_look) for _ in range(LOOKS)]
    times = [began_at(look) for look in looks]
    assert max(times) - min(times) > 3 * PAUSE
    sign_out_elsewhere(first, guarded)
    for page in (first, *others):
        wait_ended(page)


def test_a_hidden_page_asks_nothing_and_looks_when_it_is_shown(
    open_page: OpenPage, guarded: Console
) -> None:
    page = open_page(SIGNED_IN_PAGE, of=guarded)
    page.clock.install()
    looks = AskedRequests(page, LOOK)
    page.reload()
    enter(page, make_key(guarded)["key"])
    expect(page.locator(".tile")).to_have_count(5)
    page.wait_for_event("requestfinished", is_look)
    turn(page, hidden=True)
    looks.wait_answered()
    before = len(looks.urls)
    sign_out_elsewhere(page, guarded)
    page.clock.fast_forward("01:00")
    expect(page.locator(".tile")).to_have_count(5)
    assert len(looks.urls) == before
    turn(page, hidden=False)
    wait_ended(page)


# Planted texts, an unknown model, an api that is unavailable.


def test_texts_from_outside_stay_text(open_page: OpenPage) -> None:
    page = open_page("#/m/planted")
    expect(page.locator(".tile")).to_have_count(len(PLANTED))
    for index in range(len(PLANTED)):
        page.locator(".tile").nth(index).click()
        expect(page.locator("section", has_text="Metadata").locator("dd").first).to_be_visible()
        assert "planted" not in page.title().replace("planted · Inference Store", "")
        assert page.locator("main b:text-is('bold'), img[src='x'], main script").count() == 0
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Table").click()
    expect(page.locator("tbody tr")).to_have_count(len(PLANTED))
    page.locator("summary", has_text="note").click()
    expect(page.locator("details[open] li button").first).to_be_visible()


def test_shows_unknown_model(open_page: OpenPage) -> None:
    page = open_page("#/m/gone")
    expect(page.get_by_role("alert").first).to_contain_text("gone")


def test_recovers_from_an_unavailable_api(open_page: OpenPage, console: Console) -> None:
    page = open_page(f"#/m/{STREET}?f=frame_number%20%3C%205")
    expect(page.locator(".tile")).to_have_count(5)
    console.service.stop()
    box = page.get_by_role("combobox", name="Filter")
    box.fill("frame_number < 4")
    box.press("Escape")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The API is not responding")
    expect(page.locator(".tile")).to_have_count(0)
    console.service.restart().wait_ready()
    expect(page.locator(".tile")).to_have_count(4)
