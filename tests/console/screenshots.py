"""Takes the pictures of the console in the docs: `python -m tests.console.screenshots <folder>`.

They show a demo that this command starts, with real detections.
"""

import io
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from tests import http_requests
from tests.demo_process import Demo, demo, remove_database, wait_for

from .chromium import CHROMIUM, OPTIONS
from .conftest import NARROW, WIDE

START_SECONDS = 600.0
MODEL = "face-detector"
SHOWN = "prediction(label = 'face' AND score < 0.4)"
HALVES = {"f": "frame_number >= 120", "ref": "same", "rf": "frame_number < 120"}
QUALITY = 82
ERASED = {"filter": "top_label = '7'"}
HEIGHT, GAP, JOINED_QUALITY = 450, 10, 72
SCHEMES = ("light", "dark")
LISTS = (
    *("accounting", "dead-letters", "retention", "holds", "erasures", "exports"),
    *("certificates", "audit", "reconcile", "keys"),
)
PAGES = {
    "models": "",
    "overview": f"#/m/{MODEL}/overview",
    "evaluate": f"#/m/{MODEL}/evaluate?g=data_source",
    "confusion": "#/m/digit-classifier/evaluate",
    "drift": f"#/m/{MODEL}/drift?{urllib.parse.urlencode(HALVES, quote_via=urllib.parse.quote)}",
    "explore": f"#/m/{MODEL}?f={urllib.parse.quote(SHOWN)}",
    "patches": f"#/m/{MODEL}?v=patches&f={urllib.parse.quote(SHOWN)}",
    "groups": f"#/m/{MODEL}?g=data_source",
    "digits": "#/m/digit-classifier",
    "table": f"#/m/{MODEL}?v=table",
    "compare": f"#/compare?a={MODEL}&b=people-detector",
    **{name: f"#/list/{name}" for name in LISTS},
}


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        with demo(Path(directory)) as running:
            running.wait_serving(START_SECONDS)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
                _shoot_examples(browser, running, folder)
                fill(running)
                shoot_pages(browser, running, folder / "console")
        remove_database(running.output)


def _shoot_examples(browser: Browser, running: Demo, folder: Path) -> None:
    """Write the two pictures of the README and of the page on the console."""
    explore = f"#/m/{MODEL}?f={urllib.parse.quote(SHOWN)}"
    for fragment, name in [
        (explore, "console.jpg"),
        (f"{explore}&sel={_find_uid(running)}", "console-inference.jpg"),
    ]:
        with _open(browser, running, fragment, WIDE, "light") as page:
            page.locator("polygon.outline").nth(1).wait_for()
            page.wait_for_load_state("networkidle")  # the pictures
            page.screenshot(path=folder / name, type="jpeg", quality=QUALITY)


def fill(running: Demo) -> None:
    """Create content for the operators' pages."""
    hold = {"name": "incident 42", "reason": "Asked for by the legal team", "model_id": MODEL}
    ask(running, "POST", "/v1/holds", hold | {"filter": "frame_number <= 20"})
    rules = {"rules": [{"keep_input": "P30D", "keep_inference": "P90D"}]}
    policy = {"level": "model", "id": "people-detector", **rules}
    ask(running, "PUT", "/v1/models/people-detector/retention-policy", policy)
    erasure = ask(running, "POST", "/v1/models/digit-classifier/erasures", ERASED)
    view = {"name": "Faces that are hard to see", "model_id": MODEL, "filter": SHOWN}
    ask(running, "POST", "/v1/views", view)
    exported = {"filter": SHOWN, "format": "jsonl"}
    export = ask(running, "POST", f"/v1/models/{MODEL}/exports", exported)
    erased, written = f"/v1/erasures/{erasure['id']}", f"/v1/exports/{export['id']}"
    wait_for(lambda: bool(ask(running, "GET", erased)["certificate"]), START_SECONDS)
    wait_for(lambda: bool(ask(running, "GET", written)["state"] == "done"), START_SECONDS)


def ask(running: Demo, method: str, path: str, body: Any = None) -> Any:
    """Send a request to the demo's API, and return the decoded JSON answer."""
    return http_requests.ask(running.api + path, body, method=method)


def shoot_pages(browser: Browser, running: Demo, folder: Path) -> None:
    """Write a picture of each page: wide and narrow, light and dark."""
    folder.mkdir(exist_ok=True)
    uid = _find_uid(running)
    one = f"#/m/{MODEL}?sel={uid}"
    pages = PAGES | {"inference": one, "label": f"{one}&label=1"}
    # the last, because it adds inferences
    for name, fragment in [*pages.items(), ("replays", "")]:
        if name == "replays":
            fragment = _replay(running)  # noqa: PLW2901
        shots = [
            _shoot(browser, running, fragment, size, scheme)
            for size in (WIDE, NARROW)
            for scheme in SCHEMES
        ]
        join(shots).save(folder / f"{name}.jpg", quality=JOINED_QUALITY)


def _shoot(browser: Browser, running: Demo, fragment: str, size: Any, scheme: Any) -> Image.Image:
    with _open(browser, running, fragment, size, scheme) as page:
        page.locator("main h1").first.wait_for()
        page.wait_for_load_state("networkidle")  # the pictures
        return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


@contextmanager
def _open(browser: Browser, running: Demo, fragment: str, size: Any, scheme: Any) -> Iterator[Page]:
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{running.api}/console/{fragment}")
    yield page
    context.close()


def join(shots: Sequence[Image.Image]) -> Image.Image:
    """Return the pictures side by side, in one height."""
    scaled = [shot.resize((shot.width * HEIGHT // shot.height, HEIGHT)) for shot in shots]
    joined = Image.new("RGB", (sum(shot.width + GAP for shot in scaled) - GAP, HEIGHT), "white")
    x = 0
    for shot in scaled:
        joined.paste(shot, (x, 0))
        x += shot.width + GAP
    return joined


def _replay(running: Demo) -> str:
    """Send what is shown to its own model again; return the link of the replay."""
    replays = f"/v1/models/{MODEL}/replays"
    wanted = {"filter": SHOWN, "to": {"model": MODEL}, "rate": 50}
    replay = f"{replays}/{ask(running, 'POST', replays, wanted)['id']}"
    wait_for(lambda: bool(ask(running, "GET", replay)["state"] == "done"), START_SECONDS)
    return f"#/list/replays/{replay.rpartition('/')[2]}?of={MODEL}"


def _find_uid(running: Demo) -> str:
    body = {"filter": f"{SHOWN} AND prediction_count > 2", "limit": 1}
    return str(
        ask(running, "POST", f"/v1/models/{MODEL}/inferences/query", body)["items"][0]["uid"]
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
