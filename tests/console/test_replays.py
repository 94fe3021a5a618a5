"""Replays: requested from Explore, followed, and their disagreements beside each other."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.changed_detector import CHANGED, MODEL, ChangedDetector, call
from tests.http_stub import serve_http
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.environment import PREFIX
from tests.servers.waiting import wait_until

from .conftest import Console, OpenPage
from .pictures import make_png
from .watched_page import LOOKS, check_page, open_acts

COUNT = 9


@pytest.fixture(scope="module", autouse=True)
def faces(console: Console, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("replays")
    rules = [{"model": "*", "task_type": "Object Detection"}]
    port = console.environment[f"{PREFIX}REPLAY_PROXY"].rpartition(":")[2]
    with serve_http(ChangedDetector().answer) as url:
        entry = upstream_entry("one", "v2", url=url)
        with Proxy(console.environment, folder, [entry], rules, PROXY_PORT=port) as proxy:
            proxy.wait_ready()
            for number in range(1, COUNT + 1):
                address = console.environment[f"{PREFIX}REPLAY_PROXY"]
                call(address, number, make_png(20 * number))
            wait_until(lambda: console.count(MODEL) == COUNT, seconds=180, what="all indexed")
            console.ask("PUT", f"/v1/models/{CHANGED}", {"task_type": "Object Detection"})
            yield


@LOOKS
def test_replays_what_matches_and_shows_what_disagrees(
    open_page: OpenPage, scheme: str, narrow: bool
) -> None:
    page = open_page(f"#/m/{MODEL}", scheme=scheme, narrow=narrow)
    if narrow:
        page.get_by_role("button", name="More", exact=True).click()
    open_acts(page)
    page.get_by_role("link", name="Replay what matches").click()
    expect(page.get_by_role("status").first).to_contain_text(f"{COUNT} inferences of {MODEL} match")
    page.get_by_label("Send to the model").fill(CHANGED)
    check_page(page)
    page.get_by_role("button", name=re.compile("Send about 9 again")).click()
    progress = page.get_by_role("region", name="Progress")
    expect(progress).to_contain_text("Everything was sent and compared", timeout=180_000)
    pairs = page.get_by_role("region", name="Disagreements").get_by_role("article")
    expect(pairs).to_have_count(3)
    expect(pairs.first).to_contain_text("person → car")
    expect(pairs.last).to_contain_text("boxes: 1 lost, 1 new")
    check_page(page)
    pairs.last.get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Compare two inferences")).to_be_visible()
    expect(page.get_by_role("region", name="B")).to_contain_text(CHANGED)
    check_page(page)
    page.keyboard.press("Escape")
    expect(progress).to_be_visible()
    page.get_by_role("link", name="← Replays").click()
    expect(page.get_by_role("region", name="Replays")).to_contain_text(CHANGED)
    check_page(page)
