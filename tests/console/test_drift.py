"""Drift of a model: the windows that are picked, what changed first, and its inferences."""

import random
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.producer import START, Capture, capture

from .conftest import Console, OpenPage
from .watched_page import LOOKS, check_page

MODEL = "fading"
DRIFT = f"#/m/{MODEL}/drift"
_EACH = 150


def _make(rng: random.Random, number: int) -> Capture:
    """Three days ago, or, when the light has faded, an hour ago."""
    is_late = number >= _EACH
    left, size = rng.uniform(0, 100), rng.uniform(30, 60)
    box = {"xmin": left, "xmax": left + size, "ymin": 10, "ymax": 10 + size}
    label = rng.choices(("person", "dog", "car"), (1, 4, 2) if is_late else (4, 1, 2))[0]
    metadata: list[dict[str, Any]] = [
        {"key": "brightness", "type": "float", "value": f"{rng.gauss(80 if is_late else 120, 14)}"},
        {"key": "camera", "type": "string", "value": f"camera-{number % 3}"},
    ]
    return capture(
        number,
        model_id=MODEL,
        inference_id=f"{MODEL}-{number}",
        metadata=metadata,
        predictions=[{"label": label, "score": rng.uniform(0.4, 1), **box}],
        extras={"task_type": "Object Detection", "ok": rng.random() > 0.04},
        received_at=START + timedelta(seconds=number, days=0 if is_late else -3),
    )


@pytest.fixture(scope="module")
def model(console: Console) -> Iterator[str]:
    rng = random.Random(3)
    console.produce(*(_make(rng, number) for number in range(2 * _EACH)))
    view = {"name": "Camera 1", "model_id": MODEL, "filter": "camera = 'camera-1'"}
    saved = console.ask("POST", "/v1/views", view)
    yield MODEL
    console.send("DELETE", f"/v1/views/{saved['id']}")


def test_what_changed_comes_first_and_leads_to_explore(open_page: OpenPage, model: str) -> None:
    page = open_page(f"#/m/{model}")
    page.get_by_role("link", name="Drift").click()
    expect(page.get_by_role("status").first).to_have_text(
        re.compile(r"3 of \d+ changed by more than chance")
    )
    rows = page.get_by_role("article")
    expect(rows.first).to_contain_text(re.compile(r"brightness\s*drifted"))
    expect(rows.first).to_contain_text(re.compile(r"mean 1\d\d.* → \d\d"))
    expect(rows.first).to_contain_text(f"n {_EACH} and {_EACH}")
    expect(rows.first.get_by_role("img")).to_have_attribute("aria-label", re.compile("reference"))
    expect(rows.filter(has_text="drifted")).to_have_count(3)
    rows.first.get_by_role("link", name="reference").click()
    expect(page.get_by_role("status").first).to_have_text(re.compile(rf"\b{_EACH} inferences"))
    page.go_back()
    # another reference: none, then a saved view, whose cameras are too few
    page.get_by_label("Compared with", exact=True).get_by_role("combobox").select_option("24h")
    expect(page.get_by_role("alert")).to_contain_text("the window is empty")
    page.get_by_label("Compared with", exact=True).get_by_role("combobox").select_option(
        label="Saved view: Camera 1"
    )
    expect(page.get_by_role("group", name="Compared with")).to_contain_text("100 inferences")
    # and another filter of the same time
    page.get_by_label("Compared with", exact=True).get_by_role("combobox").select_option("same")
    page.get_by_label("Its filter").fill("camera = 'camera-1'")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("status").first).to_contain_text("Too few to tell")
    expect(page).to_have_url(re.compile(r"rf=camera"))


@LOOKS
def test_it_can_be_seen_by_all(open_page: OpenPage, model: str, scheme: str, narrow: bool) -> None:
    page = open_page(f"#/m/{model}/drift", scheme=scheme, narrow=narrow)
    expect(page.get_by_role("article").first).to_be_visible()
    check_page(page)
