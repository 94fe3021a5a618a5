"""A landing runs a part of each group; the table is complete, and the commit decides the part."""

from collections import Counter
from pathlib import Path

import pytest

from tests.runs.citus import SELECTED
from tests.runs.rings import DEAREST, GROUPS, ROOT, ROTATION, Landing, find_group

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


def test_a_file_runs_in_a_tenth_of_the_landings_and_each_landing_runs_another_tenth() -> None:
    landings = [Landing(f"{number:040x}", ()) for number in range(500)]
    turns = sum(landing.runs("model-servers", _TEST) for landing in landings)
    assert 500 / ROTATION / 2 < turns < 500 / ROTATION * 2
    files = [f"tests/e2e/test_{number}.py" for number in range(500)]
    chosen = Counter(
        path for landing in landings[:50] for path in files if landing.has_turn("e2e", path)
    )
    assert len(chosen) == len(files), "every file has its turn"
    for landing in landings[:50]:
        assert len({landing.has_turn("chart-e2e", path) for path in files}) == 1


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


@pytest.mark.parametrize(
    ("path", "marks", "group"),
    [
        ("tests/integration/api/test_models.py", [], ""),
        ("tests/integration/api/test_models.py", ["long"], "long"),
        ("tests/integration/client/test_docs.py", [], "dearest"),
        ("tests/integration/client/test_docs.py", ["kills"], "kills"),
        ("tests/integration/api/test_models.py", ["kills", "faults"], "faults"),
        ("tests/e2e/test_demo.py", [], "e2e"),
        ("tests/e2e/faults/test_each_once.py", ["faults"], "faults"),
        ("tests/e2e/faults/deletion/test_steps.py", ["faults"], "release"),
        ("tests/chart/e2e/test_release.py", [], "chart-e2e"),
    ],
)
def test_the_longest_path_and_the_marks_decide_the_group(
    path: str, marks: list[str], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INFERENCE_STORE_TEST_CITUS_DSN", raising=False)
    assert find_group(path, marks) == group
    assert Path(path).suffix == ".py"
