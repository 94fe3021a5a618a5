"""What is rendered needs helm; where it is missing the run says so, and fails if it is required."""

import os

import pytest

from .rendering import program

# Set by `make chart`: a missing program fails the run.
REQUIRE_HELM = "INFERENCE_STORE_REQUIRE_HELM"
_NOT_RUN: set[str] = set()


@pytest.fixture(scope="session")
def helm_is_here() -> None:
    """Skip, or fail, without helm and kubeconform."""
    missing = [name for name in ("helm", "kubeconform") if program(name) is None]
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
            f"not run: the chart was not rendered, since {names} is not here (`make chart`"
            " builds it with Go).",
            yellow=True,
        )
