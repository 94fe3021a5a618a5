"""The end-to-end test follows the whole tutorial, and notices another answer."""

import json

from tests.e2e.tutorial import PAGE, is_shown, read_steps


def test_every_answer_of_the_page_belongs_to_a_command() -> None:
    page = PAGE.read_text()
    steps = [*read_steps(page)]
    assert len(steps) > 15
    assert sum(bool(step.output) for step in steps) == page.count("```json") + page.count("```text")
    assert [json.loads(step.output) for step in steps if step.output.startswith("{")]


def test_compares_an_answer_with_the_page() -> None:
    printed = '{"a": 1, "b": [{"x": "uid-1", "y": null}, {"x": "uid-2"}]}'
    for expected in ('{"a": 1}', '{"b": [{"x": "uid-…"}]}', ""):
        assert is_shown(expected, printed), expected
    for expected in ('{"a": 2}', '{"c": 1}', '{"b": [{"x": "…-2"}]}', '{"b": [{}, {}, {}]}'):
        assert not is_shown(expected, printed), expected
    assert is_shown("head … ok\n", "head 17 ok")
    assert not is_shown("head … ok\n", "head 17 ok\nand a failure")
