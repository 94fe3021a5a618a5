"""The fixture of tests that need helm: they are skipped without it, or fail if it is required."""

import os

import pytest

from .rendering import find_program

# Set by `make chart`: a missing program fails the run.
REQUIRE_HELM = "INFERENCE_STORE_REQUIRE_HELM"
_NOT_RUN: set[str] = set()


@pytest.fixture(scope="session")
def require_helm() -> None:
    """Skip, or fail, without helm and kubeconform."""
    missing = [name for name in ("helm", "kubeconform") if find_program(name) is None]
    if missing:
        _NOT_RUN.update(missing)
        reason = f"{' and '.join(missing)} not installed: `make chart` builds them"
        if os.environ.get(REQUIRE_HELM) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _NOT_RUN:
        names = " and ".join(sorted(_NOT_RUN))
        terminalreporter.write_line(
            f"not run: the chart was not rendered, because {names} is missing (`make chart`"
            " builds it with Go).",
            yellow=True,
        )
