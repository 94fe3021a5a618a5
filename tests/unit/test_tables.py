"""The tables of the docs that are lists of the code are as the code makes them."""

from collections import Counter

from docs.describe import PAGES, fill, find_marks
from docs.tables import FAMILIES, TABLES

from inference_store.platform.metrics import METRICS
from inference_store.platform.settings import names
from tests.e2e.metric_moves import MOVES

_TEXTS = {str(path.relative_to(PAGES)): path.read_text() for path in PAGES.rglob("*.md")}


def test_tables_are_those_of_the_code() -> None:
    assert (
        fill("<!-- checks -->\nold\n<!-- /checks -->") != "<!-- checks -->\nold\n<!-- /checks -->"
    )
    assert not [page for page, text in _TEXTS.items() if text != fill(text)], "run `make reference`"


def test_every_table_is_in_one_page() -> None:
    marks = Counter(mark for text in _TEXTS.values() for mark in find_marks(text))
    assert {mark for mark in marks if mark.split()[0] not in FAMILIES} == set(TABLES)
    assert set(marks.values()) == {1}


def test_a_family_is_listed_as_a_whole() -> None:
    metric_names = {metric.name for metric in METRICS}
    for page, listed in (("settings", names()), ("metrics", metric_names)):
        lines = _TEXTS[f"reference/{page}.md"].splitlines()
        rows = Counter(line.split("`")[1] for line in lines if "| `" in line[:3])
        assert rows == dict.fromkeys(listed, 1), page


def test_every_metric_has_its_line_in_the_test_that_moves_them() -> None:
    metric_names = {entry.name.removeprefix("inference_store_") for entry in METRICS}
    assert set(MOVES) == metric_names, "add it to tests/e2e/metric_moves.py"
