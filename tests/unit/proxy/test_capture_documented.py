"""The pages on capture and the proxy say what the configuration and the protocols are."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from inference_store.inference.field_docs import field_docs
from inference_store.inference.task_types import OutputMapping, read_predictions, task_type_of
from inference_store.proxy.configuration import (
    Redaction,
    Rules,
    Sampling,
    UpstreamEntry,
    read_configuration_file,
)
from tests.unit.proxy.protocols.v2.calls import encode_body, make_lengths, read
from tests.unit.proxy.protocols.v2_grpc.calls import Request, Response, read_exchange

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


BOXES = {
    "boxes": ("FP32", [1, 4], struct.pack("<4f", 2, 1, 4, 2)),
    "scores": ("FP32", [1], struct.pack("<f", 1)),
    "classes": ("INT32", [1], struct.pack("<i", 1)),
}


def test_the_registration_makes_boxes_of_tritons_binary_tensors() -> None:
    """Over REST and gRPC; the datum is the bytes of the input tensor."""
    found = re.search(r"^PUT /v1/models/yolo\n(\{.*?\})\n```", CAPTURE, re.DOTALL | re.MULTILINE)
    assert found is not None
    registration = json.loads(found[1])
    image = {"name": "image", "datatype": "UINT8", "shape": [4, 6, 3]}
    outputs = [
        {"name": name, "datatype": datatype, "shape": shape}
        for name, (datatype, shape, _) in BOXES.items()
    ]
    raw = [part for _, _, part in BOXES.values()]
    pixels = bytes(range(4 * 6 * 3))
    sent = encode_body({"inputs": [image | {"parameters": {"binary_data_size": len(pixels)}}]})
    sizes = [{"parameters": {"binary_data_size": len(part)}} for part in raw]
    pairs = zip(outputs, sizes, strict=True)
    answer = encode_body({"outputs": [output | size for output, size in pairs]})
    lengths: dict[str, Any] = {"sent": make_lengths(sent), "answered": make_lengths(answer)}
    for reading in (
        read(sent + pixels, answer + b"".join(raw), **lengths),
        read_exchange(
            [Request(inputs=[image], raw_input_contents=[pixels])],
            [Response(outputs=outputs, raw_output_contents=raw)],
        ),
    ):
        (inference,) = reading.inferences
        assert (inference.data, reading.problem) == (pixels, None)
        (box,) = (
            read_predictions(
                inference.response,
                task_type=task_type_of(registration["task_type"]),
                class_labels=registration["class_labels"],
                output_mapping=OutputMapping.model_validate(registration["output_mapping"]),
            ).items
            or ()
        )
        assert (box.label, box.score) == ("bicycle", 1)
        assert (box.xmin, box.ymin, box.xmax, box.ymax) == (2, 1, 4, 2)
