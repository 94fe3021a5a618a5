"""`inference-store <command>` imports a command's parts, and nothing else of them happens."""

import gc
from collections.abc import Iterator

import pytest

from inference_store.cli.main import main


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize(("command", "status"), [("proxy", 0), ("no-such-command", 2)])
def test_garbage_is_collected_after_the_import(command: str, status: int) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == status
    assert gc.isenabled()
