"""docs/capture.md says what the configuration and the protocols are."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from inference_store.inference.documented import field_docs
from inference_store.proxy.configuration import configuration_of
from inference_store.proxy.configuration.entries import (
    ModelEntry,
    RedactionEntry,
    SamplingEntry,
    UpstreamEntry,
)
from inference_store.proxy.protocols import PROTOCOLS

CAPTURE = (Path(__file__).parents[3] / "docs" / "capture.md").read_text()
FILES = re.findall(r"```yaml\n(.*?)```", CAPTURE, re.DOTALL)


@pytest.mark.parametrize("text", FILES, ids=range(len(FILES)))
def test_every_file_can_be_used(text: str, tmp_path: Path) -> None:
    path = tmp_path / "proxy.yaml"
    path.write_text(text)
    assert configuration_of(path, protocols=PROTOCOLS).upstreams


@pytest.mark.parametrize("entry", [UpstreamEntry, ModelEntry, SamplingEntry, RedactionEntry])
def test_every_name_says_what_it_does(entry: type[BaseModel]) -> None:
    told = field_docs(entry)
    for name in entry.model_fields:
        assert f"| `{name}` | {' '.join(told.get(name, '').split())} |" in CAPTURE


def test_every_protocol_says_what_is_captured() -> None:
    table = CAPTURE[CAPTURE.index("| protocol |") :]
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE) == list(PROTOCOLS)
