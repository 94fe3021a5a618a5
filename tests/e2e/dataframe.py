"""Runs the tutorial about DataFrames: its examples print what the page shows."""

import doctest
import io
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "dataframe.md"
_API = "http://127.0.0.1:8080"


def follow_dataframe(api: str) -> None:
    """Run each example beside a demo. Raise AssertionError if one prints something else."""
    text = PAGE.read_text().replace(_API, api).replace("\n```", "\n\n")
    text += "\n>>> store.close()\n"
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(test.examples) > 10
    printed = io.StringIO()
    failed, _ = doctest.DocTestRunner().run(test, out=printed.write)
    assert not failed, printed.getvalue()
