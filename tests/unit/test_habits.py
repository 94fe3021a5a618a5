"""Contributors and the host's machines run the targets of the Makefile."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS: Final = set(re.findall(r"^([a-z0-9-]+):.*## ", MAKEFILE, re.MULTILINE))
WORKFLOWS: Final = sorted((GITHUB / "workflows").glob("*.yml"))
CONTRIBUTING: Final = (ROOT / "CONTRIBUTING.md").read_text()
# In code of Markdown, or in a step: `make a b VARIABLE=1`, with options of make before.
_MAKE = re.compile(r"(?:^|[`(])make((?: --?[a-z]+)*(?: [a-zA-Z0-9_./$\"{}=-]+)+)", re.MULTILINE)


def load_jobs(path: Path) -> dict[str, Any]:
    """Return the jobs of a workflow by name."""
    jobs = yaml.safe_load(path.read_text())["jobs"]
    assert isinstance(jobs, dict)
    return jobs


def find_steps(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every step of a workflow."""
    for job in load_jobs(path).values():
        yield from job.get("steps", [])


def find_targets(text: str) -> set[str]:
    """Return the targets that the calls of `make` in a text name."""
    words = {word for call in _MAKE.findall(text) for word in call.split()}
    return {word for word in words if re.fullmatch(r"[a-z][a-z0-9-]*", word)}


def find_recipe(target: str) -> str:
    """Return the commands of a target, with variables as they are written."""
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe
    return recipe[1].replace("$(BIN)", ".venv/bin")


def find_hooks() -> str:
    """Return the text of the configuration of git's hooks."""
    return (ROOT / ".pre-commit-config.yaml").read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_that_exist(path: Path) -> None:
    called = find_targets("\n".join(step.get("run", "") for step in find_steps(path)))
    assert called
    assert called <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    lines = re.findall(r"^ *(?:- )?uses: (.+)$", path.read_text(), re.MULTILINE)
    loose = [line for line in lines if not re.fullmatch(r"\S+@[0-9a-f]{40} # v[\d.]+", line)]
    assert not [line for line in loose if not line.startswith("./.github/workflows/")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_has_the_rights_that_it_names(path: Path) -> None:
    """No job has the host's default rights, and only a release writes anything."""
    assert yaml.safe_load(path.read_text())["permissions"] == {}
    for name, job in load_jobs(path).items():
        writes = {right for right, level in job["permissions"].items() if level == "write"}
        assert job["permissions"]["contents"] in {"read", "write"}, name
        assert not writes or path.name == "release.yml", name


def test_the_units_run_under_every_supported_python() -> None:
    oldest, newest = (
        int(re.findall(rf"^{name} := (\d+)$", MAKEFILE, re.MULTILINE)[0])
        for name in ("OLDEST", "NEWEST")
    )
    pythons = load_jobs(GITHUB / "workflows" / "ci.yml")["unit"]["strategy"]["matrix"]["python"]
    assert pythons == [f"3.{minor}" for minor in range(oldest, newest + 1)]


def test_acceptance_runs_on_the_base_of_the_image() -> None:
    image = load_jobs(GITHUB / "workflows" / "ci.yml")["acceptance"]["container"]["image"]
    assert f"ARG BASE={image}\n" in (ROOT / "Dockerfile").read_text()


def test_hooks_run_what_make_runs() -> None:
    repos = yaml.safe_load(find_hooks())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    recipes = "".join(find_recipe(target) for target in ("lint", "types", "workflows"))
    for hook in repos[0]["hooks"]:
        assert hook["entry"] in recipes, hook["id"]


def test_the_development_container_can_be_read_and_calls_targets() -> None:
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text()
    container = json.loads(re.sub(r"^//.*$", "", text, flags=re.MULTILINE))
    assert find_targets(container["postCreateCommand"]) == {"venv", "hooks"}
    assert find_targets(container["postCreateCommand"]) <= TARGETS


def test_the_change_template_names_targets_that_exist() -> None:
    assert find_targets((GITHUB / "pull_request_template.md").read_text()) <= TARGETS


def test_contributing_names_targets_that_exist() -> None:
    called = find_targets(CONTRIBUTING)
    assert called >= {"venv", "hooks", "test", "lint", "types", "unit"}
    assert called <= TARGETS


def test_contributing_names_paths_that_exist() -> None:
    paths = set(re.findall(r"`((?:\.?[\w-]+/)[\w./-]*|[\w.-]+\.(?:md|toml))`", CONTRIBUTING))
    paths |= set(re.findall(r"\]\(([^)#]+)\)", CONTRIBUTING))
    assert len(paths) > 10
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]


def test_contributing_runs_tests_that_exist() -> None:
    commands = re.findall(r"^\.venv/bin/python -m pytest (.+)$", CONTRIBUTING, re.MULTILINE)
    assert commands
    for argument in (word for line in commands for word in line.split() if "/" in word):
        path, _, name = argument.partition("::")
        assert (ROOT / path).exists(), path
        assert f"def {name}" in (ROOT / path).read_text() if name else True, argument


def test_every_command_of_the_virtual_environment_is_locked() -> None:
    """`.venv/bin/NAME` comes from a package of the lock, or is Python."""
    names = set(re.findall(r"\.venv/bin/([\w-]+)", CONTRIBUTING + find_hooks())) - {"python"}
    lock = (ROOT / "requirements-dev.lock").read_text()
    assert not [name for name in names if not re.search(rf"^{name}==", lock, re.MULTILINE)]
