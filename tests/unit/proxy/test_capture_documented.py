"""The pages on capture and the proxy say what the configuration and the protocols are."""

import re
from pathlib import Path

import pytest

from inference_store.inference.field_docs import field_docs
from inference_store.proxy.configuration import (
    Redaction,
    Rules,
    Sampling,
    UpstreamEntry,
    read_configuration_file,
)

DOCS = Path(__file__).parents[3] / "docs"
CAPTURE = "".join((DOCS / page).read_text() for page in ("reference/proxy.md", "how-to/capture.md"))
FILES = re.findall(r"```yaml\n(.*?)```", CAPTURE, re.DOTALL)


@pytest.mark.parametrize("text", FILES, ids=range(len(FILES)))
def test_every_file_can_be_used(text: str, tmp_path: Path) -> None:
    path = tmp_path / "proxy.yaml"
    path.write_text(text)
    assert read_configuration_file(path).upstreams


def test_documents_every_name() -> None:
    for entry in (UpstreamEntry, Rules, Sampling, Redaction):
        docs_by_field = field_docs(entry)
        for name in entry.model_fields:
            assert f"| `{name}` | {' '.join(docs_by_field.get(name, '').split())} |" in CAPTURE
