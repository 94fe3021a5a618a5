"""The tables of the docs that are lists of the code are as the code makes them."""

from collections import Counter

import pytest
from docs.describe import PAGES, fill, find_marks
from docs.tables import FAMILIES, TABLES

from inference_store.platform.metrics import METRICS
from inference_store.platform.settings import names
from tests.e2e.metric_moves import MOVES

_TEXTS = {str(path.relative_to(PAGES)): path.read_text() for path in PAGES.rglob("*.md")}


@pytest.mark.parametrize("page", sorted(page for page in _TEXTS if [*find_marks(_TEXTS[page])]))
def test_tables_are_those_of_the_code(page: str) -> None:
    assert _TEXTS[page] == fill(_TEXTS[page]), "run `make reference`"


def test_every_table_is_in_one_page() -> None:
    marks = Counter(mark for text in _TEXTS.values() for mark in find_marks(text))
    assert {mark for mark in marks if mark.split()[0] not in FAMILIES} == set(TABLES)
    assert set(marks.values()) == {1}


@pytest.mark.parametrize(
    ("page", "listed"),
    [
        ("reference/settings.md", names()),
        ("reference/metrics.md", {metric.name for metric in METRICS}),
    ],
)
def test_a_family_is_listed_as_a_whole(page: str, listed: set[str]) -> None:
    rows = Counter(line.split("`")[1] for line in _TEXTS[page].splitlines() if "| `" in line[:3])
    assert set(rows) == listed
    assert set(rows.values()) == {1}


def test_another_mark_is_left_alone() -> None:
    text = "<!-- bars of bench-x -->\na\n<!-- /bars of bench-x -->\n"
    assert fill(text) == text


def test_replaces_the_text_between_two_marks() -> None:
    filled = fill("a\n<!-- checks -->\nold\n<!-- /checks -->\nb")
    assert filled.startswith("a\n<!-- checks -->\n\n| check | what should be |\n|---|---|\n| ")
    assert filled.endswith("|\n\n<!-- /checks -->\nb")


def test_every_metric_has_its_line_in_the_test_that_moves_them() -> None:
    metric_names = {entry.name.removeprefix("inference_store_") for entry in METRICS}
    assert set(MOVES) == metric_names, "add it to tests/e2e/metric_moves.py"
