"""The end-to-end test follows the whole tutorial, and notices another answer."""

import json

import pytest

from tests.e2e.tutorial import PAGE, is_shown, read_steps


def test_every_answer_of_the_page_belongs_to_a_command() -> None:
    page = PAGE.read_text()
    steps = [*read_steps(page)]
    assert len(steps) > 15
    assert sum(bool(step.output) for step in steps) == page.count("```json") + page.count("```text")
    assert [json.loads(step.output) for step in steps if step.output.startswith("{")]


@pytest.mark.parametrize(
    ("expected", "is_true"),
    [
        ('{"a": 1}', True),
        ('{"a": 2}', False),
        ('{"c": 1}', False),
        ('{"b": [{"x": "uid-…"}]}', True),
        ('{"b": [{"x": "…-2"}]}', False),
        ('{"b": [{}, {}, {}]}', False),
        ("", True),
    ],
)
def test_compares_an_answer_with_the_page(expected: str, *, is_true: bool) -> None:
    printed = '{"a": 1, "b": [{"x": "uid-1", "y": null}, {"x": "uid-2"}]}'
    assert is_shown(expected, printed) is is_true


def test_a_text_is_compared_as_a_whole() -> None:
    assert is_shown("head … ok\n", "head 17 ok")
    assert not is_shown("head … ok\n", "head 17 ok\nand a failure")
