"""A landing runs a part of each group; the table is complete, and the commit decides the part."""

import pytest

from tests.mutations.__main__ import read_promises
from tests.runs.citus import SELECTED
from tests.runs.rings import DEAREST, GROUPS, ROOT, Landing

_TEST = "tests/e2e/model_servers/test_fuzz.py"


def test_every_test_has_a_group_and_every_path_of_the_table_exists() -> None:
    rings = {"tests/unit", "tests/integration", *(p for g in GROUPS.values() for p in g.paths)}
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    assert [f for f in files if not any(f.is_relative_to(folder) for folder in rings)] == []
    paths = [path for g in GROUPS.values() for path in (*g.paths, *g.whole_after)]
    assert [path for path in (*paths, *SELECTED, *DEAREST) if not (ROOT / path).exists()] == []
    for name, group in GROUPS.items():
        for node in group.smoke:
            path, _, test = node.partition("::")
            text = (ROOT / path).read_text()
            assert not test or f"def {test.partition('[')[0]}(" in text, f"{name}: {node}"


def test_a_change_adds_a_group_whole_and_smoke_tests_always_run() -> None:
    parent = next(p for p in map(str, range(99)) if not Landing(p, ()).runs("model-servers", _TEST))
    quiet = Landing(parent, ("docs/index.md", "console.md"))
    assert not quiet.runs("model-servers", _TEST)
    assert not quiet.is_whole("console")
    assert Landing(parent, ("services/inference_store/proxy/rest/a.py",)).runs(
        "model-servers", _TEST
    )
    assert Landing(parent, (), everything=True).runs("model-servers", _TEST)
    assert not Landing(parent, (), everything=True).runs("release", _TEST)
    for name, group in GROUPS.items():
        for node in group.smoke:
            path = node.partition("::")[0]
            assert quiet.runs(name, path), node
            assert quiet.runs(name, path, node if "::" in node else f"{node}::test_x"), node
            assert quiet.runs(name, path, f"{node}[a-b]") or "::" not in node
    assert quiet.runs("", "tests/integration/test_any.py", "tests/integration/test_any.py::test_x")


def test_what_is_begun_late_runs_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    landing = Landing("", ("console/src/a.ts",))
    assert landing.is_whole("console")
    monkeypatch.setenv("CI_IN_PART", "1")
    assert not landing.is_whole("console")


def test_each_promise_that_mutations_break_is_in_its_file_once_and_has_its_test() -> None:
    for promise in read_promises():
        text = (ROOT / "services" / "inference_store" / promise["file"]).read_text()
        assert text.count(promise["old"]) == 1, promise["promise"]
        path, _, test = promise["test"].partition("::")
        assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text(), promise["promise"]
