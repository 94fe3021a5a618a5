"""What the import of the client brings with it."""

import subprocess
import sys
from pathlib import Path

import pytest

import inference_store_client as package

_SOURCE = Path(__file__).parents[3] / "client" / "src"
_PARTS = ("asynchronous", "chariot", "command_line", "datasets")
_LATER = (
    *(f"inference_store_client.{name}" for name in _PARTS),
    *("imagesize", "nanoarrow", "pandas", "polars", "inference_store"),
)


def test_an_import_brings_neither_extras_nor_the_other_half() -> None:
    script = f"import sys, inference_store_client; print(set({_LATER!r}) & sys.modules.keys())"
    command = [sys.executable, "-c", script]
    environment = {"PYTHONPATH": str(_SOURCE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_every_public_name_exists() -> None:
    assert sorted(package.__all__) == package.__all__
    assert all(hasattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018
