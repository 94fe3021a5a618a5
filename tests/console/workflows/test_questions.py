"""Questions in three actions, shared by a link; a gallery that takes four requests a page."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Console, OpenPage
from tests.console.pictures import make_png
from tests.console.test_erasures import make_captures
from tests.console.test_explore import list_ids
from tests.console.watched_page import AskedRequests, allow_copying, wait_in_page
from tests.producer import Capture, capture

README = " ".join((Path(__file__).parents[3] / "README.md").read_text().split())
COMMAND = re.compile(
    r"/v1/models/(\S+)/inferences/(query|count) .*?(?:-d '|<<'END' )(?:\| jq [^{]*)?(\{.*?\})['` ]"
)
FRAMES = [*range(170, 190), *range(8990, 9015)]
PEOPLE, FACES = "people-detector", "face-detector"
CAMERAS = ("yard-camera-feed", "hallway-camera-feed")


@dataclass(frozen=True, slots=True)
class Question:
    """A question in the words of the README and as a filter, and the frames that answer it."""

    words: str
    model: str
    filter: str
    is_answer: Callable[[int], bool]


QUESTIONS = (
    Question(
        "every frame with `frame_number > 9000` where a `person` scored under .4",
        PEOPLE,
        "frame_number > 9000 AND prediction(label = 'person' AND score < 0.4)",
        lambda frame: frame > 9000 and frame % 10 < 4,
    ),
    Question(
        "What did the face detector take for a face, and was not sure of?",
        FACES,
        "prediction(label = 'face' AND score < 0.4)",
        lambda frame: frame % 10 < 4,
    ),
    Question(
        "frame_number > 180 AND data_source = 'hallway-camera-feed'",
        PEOPLE,
        "frame_number > 180 AND data_source = 'hallway-camera-feed'",
        lambda frame: frame > 180 and frame % 2 == 1,
    ),
)


def make_frame(number: int, model: str, label: str) -> Capture:
    box = {"xmin": 32, "ymin": 24, "xmax": 96, "ymax": 120}
    camera = CAMERAS[number % len(CAMERAS)]
    return capture(
        number,
        model_id=model,
        data=make_png(number),
        inference_id=f"frame-{number:05d}",
        metadata=[
            {"key": "frame_number", "type": "int", "value": str(number)},
            {"key": "data_source", "type": "string", "value": camera},
        ],
        predictions=[{"label": label, "score": number % 10 / 10, **box}],
        extras={"task_type": "Object Detection", "data_content_type": "image/png", "ok": True},
    )


def list_answers(question: Question) -> list[str]:
    """The ids of the frames that answer a question, the newest first."""
    return [f"frame-{frame:05d}" for frame in reversed(FRAMES) if question.is_answer(frame)]


@pytest.fixture(scope="module")
def cameras(console: Console) -> None:
    """The two detectors of the README, with frames of two cameras."""
    labels = {PEOPLE: "person", FACES: "face"}
    for model, label in labels.items():
        console.produce(*(make_frame(number, model, label) for number in FRAMES))


def copy_link(page: Page) -> str:
    allow_copying(page)
    page.get_by_text("Copy", exact=True).click()
    page.get_by_role("button", name="Link", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Link copied")).to_be_attached()
    return str(page.evaluate("navigator.clipboard.readText()"))


@pytest.mark.usefixtures("cameras")
def test_each_takes_three_actions_and_is_a_link(open_page: OpenPage, console: Console) -> None:
    for question in QUESTIONS:
        assert question.words in README
        page = open_page()
        page.get_by_role("main").get_by_role("link", name=question.model, exact=True).click()
        page.get_by_role("combobox", name="Filter in CQL2").fill(question.filter)
        page.keyboard.press("Enter")
        expected = list_answers(question)
        expect(page.get_by_text(f"{len(expected)} inferences", exact=True)).to_be_visible()
        assert list_ids(page) == expected
        address, _, fragment = copy_link(page).partition("/console/")
        assert address == console.address
        assert list_ids(open_page(fragment)) == expected


@pytest.mark.usefixtures("cameras")
def test_the_commands_of_the_readme_have_the_same_answers(console: Console) -> None:
    commands = COMMAND.findall(README)
    assert [model for model, _, _ in commands] == [question.model for question in QUESTIONS[1:]]
    for (model, kind, body), question in zip(commands, QUESTIONS[1:], strict=True):
        request: dict[str, Any] = {"filter": json.loads(body)["filter"]}
        request |= {"limit": 100} if kind == "query" else {}
        answer = console.ask("POST", f"/v1/models/{model}/inferences/{kind}", request)
        expected = list_answers(question)
        if kind == "query":
            assert [item["inference_id"] for item in answer["items"]] == expected
        else:
            assert answer["count"] == len(expected)


MODEL = "gallery-cameras"
INFERENCES = 200
PAGE, NEXT_PAGE = 60, 120
ALMOST_TO_THE_END = "main => main.scrollTo(0, main.scrollHeight - main.clientHeight - 300)"
IN_BLOCK = 60
TO_A_TILE = f"""(main, number) => {{
    const blocks = [...main.querySelectorAll("[data-block]")]; // those near the window
    const at = Math.floor(number / {IN_BLOCK}) - blocks[0].dataset.block;
    const block = blocks[Math.max(0, at)] ?? blocks.at(-1);
    const {{ top, height }} = block.getBoundingClientRect();
    main.scrollBy(0, top + (number % {IN_BLOCK}) / {IN_BLOCK} * height - 300);
}}"""
MOST_REQUESTS = 4
SCROLLED = range(9, INFERENCES, 10)
JUMPED = [*range(PAGE - 1, INFERENCES, PAGE), *reversed(SCROLLED)]
"""To the end of each page of the list, then back."""


@pytest.fixture(scope="module")
def gallery(console: Console) -> str:
    """The address of a model with pictures."""
    console.produce(*make_captures(MODEL, 0, INFERENCES))
    return f"{console.address}/console/#/m/{MODEL}"


def count_reads(console: Console) -> int:
    """How many entries the audit has about thumbnails of the model."""
    path = f"/v1/audit?action=thumbnails_read&model_id={MODEL}&limit=1000"
    return len(console.ask("GET", path)["items"])


def show_tile(page: Page, number: int) -> None:
    """Scroll until a tile has its picture; what is far from the window is not there."""
    main, id = page.get_by_role("main"), f"{MODEL}-{INFERENCES - 1 - number}"
    tile = page.locator(".tile").filter(has=page.get_by_text(id, exact=True))

    def is_shown() -> bool:
        main.evaluate(TO_A_TILE, number)
        return tile.locator("img").count() > 0

    expect(page.locator(".tile").first).to_be_visible()
    wait_in_page(page, is_shown, what=f"the picture of {id}")


@pytest.mark.parametrize("steps", [SCROLLED, JUMPED], ids=["scrolled", "jumped"])
def test_it_takes_four_requests_and_audit_entries(
    open_page: OpenPage, console: Console, gallery: str, steps: Sequence[int]
) -> None:
    page = open_page("#/list/accounting")  # has no picture
    expect(page.locator("tbody tr").first).to_be_visible()
    before = count_reads(console)
    thumbnails, inputs = AskedRequests(page, "/thumbnails"), AskedRequests(page, "/data")
    page.goto(gallery)
    tiles = page.locator(".tile")
    for number in steps:
        show_tile(page, number)
    expect(page.get_by_text(f"{INFERENCES} inferences", exact=True)).to_be_visible()
    pictures = tiles.locator("img")
    expect(pictures.first).to_have_attribute("src", re.compile("^data:image/jpeg;base64,"))
    wait_in_page(
        page, lambda: tiles.count() < INFERENCES - 1, what="what is far from the window goes"
    )
    thumbnails.wait_answered()
    assert len(thumbnails.urls) <= MOST_REQUESTS
    assert count_reads(console) - before == len(thumbnails.urls)
    assert not inputs.urls


def test_the_next_page_comes_before_the_end_is_reached(open_page: OpenPage, gallery: str) -> None:
    page = open_page(gallery.partition("/console/")[2])
    expect(page.locator(".tile")).to_have_count(PAGE)
    page.get_by_role("main").evaluate(ALMOST_TO_THE_END)
    expect(page.get_by_text(f"{PAGE + NEXT_PAGE} of {INFERENCES}")).to_be_visible()
