"""The classifier of digits finds what its training does, and needs none of the demo's packages."""

import base64
import json
import struct
import subprocess
import sys
import urllib.request
import zlib

import pytest

from inference_store.local.demo.models import HELD_OUT, LABELS
from inference_store.local.demo.served_models import (
    MOST_PIXELS,
    NoPicture,
    SmallClassifier,
)
from inference_store.local.folder import HOST
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until

# Packages that the extra `demo` brings, and the services do not have.
_DEMO = ("cv2", "numpy", "skimage", "sklearn", "scipy", "joblib", "psutil")
_CODE = f"""
import runpy, sys
sys.modules |= dict.fromkeys({_DEMO!r})  # to import one raises ImportError
sys.argv = ["model_server", *sys.argv[1:]]
runpy.run_module("inference_store.local.demo.model_server", run_name="__main__")
"""


def make_png(width: int, height: int, colour: int, lines: bytes, *, depth: int = 8) -> bytes:
    """A PNG of these lines, each with its filter before it."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_it_finds_what_its_training_finds() -> None:
    pytest.importorskip("cv2", reason="the demo's packages are not installed")
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    from inference_store.local.demo.feed import digit_requests  # noqa: PLC0415
    from inference_store.local.demo.sources import held_out_digits  # noqa: PLC0415

    digits, small, data = held_out_digits(), SmallClassifier(), load_digits()
    unseen = {digit.sample for digit in digits}
    training = [sample for sample in range(len(data.target)) if sample not in unseen]
    trained = LogisticRegression(max_iter=2000)
    trained.fit(data.data[training] / 16, data.target[training])
    assert len(digits) == HELD_OUT
    right = 0
    for digit, request in zip(digits, digit_requests("digit-classifier", digits), strict=True):
        findings = small.classify(request.picture)
        (shares,) = trained.predict_proba([digit.pixels / 16])
        assert {finding["label"] for finding in findings} == set(LABELS)
        assert findings[0]["label"] == LABELS[shares.argmax()]
        assert findings[0]["score"] == pytest.approx(shares.max(), abs=0.001)
        right += findings[0]["label"] == digit.true_label
    assert right / HELD_OUT > 0.95


def test_reads_every_form_of_a_png_alike() -> None:
    grey = SmallClassifier().classify(make_png(8, 8, 0, (b"\0" + b"\x70" * 8) * 8))
    for colour, pixel in ((2, b"\x70\x70\x70"), (4, b"\x70\0"), (6, b"\x70\x70\x70\xff")):
        picture = make_png(8, 8, colour, (b"\0" + pixel * 8) * 8)
        assert SmallClassifier().classify(picture) == grey, colour
    enlarged = make_png(64, 64, 0, (b"\0" + b"\x70" * 64) * 64)
    assert SmallClassifier().classify(enlarged) == grey


def test_rejects_data_that_is_no_small_png(subtests: pytest.Subtests) -> None:
    lines = b"\0\x01\x02\0\x03\x04"
    for content in (
        b"",
        b"no picture",
        make_png(2, 2, 0, b"\0\x01"),
        make_png(2, 2, 0, b"\x09\x01\x02\x09\x03\x04"),
        make_png(2, 2, 3, lines),
        make_png(2, 2, 0, lines, depth=16),
        make_png(MOST_PIXELS, 2, 0, b"\0"),
        make_png(0, 2, 0, b"\0"),
        make_png(2, 2, 0, lines)[:20],
        make_png(2, 2, 0, lines).replace(b"x\x9c", b"xx"),
    ):
        with subtests.test(content=content), pytest.raises(NoPicture):
            SmallClassifier().classify(content)


def _is_ready(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/v2/health/ready", timeout=300).close()
    except OSError:
        return False
    return True


def test_it_is_served_without_the_demos_packages() -> None:
    rest, over_grpc = free_port(), free_port()
    command = [sys.executable, "-c", _CODE, str(rest), str(over_grpc), "--small"]
    picture = base64.b64encode(make_png(8, 8, 0, (b"\0" + b"\x07" * 8) * 8)).decode()
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [picture]}
    body = json.dumps({"inputs": [tensor]}).encode()
    server = f"http://{HOST}:{rest}"
    with subprocess.Popen([*command, "--host", "0.0.0.0"]) as process:
        try:
            wait_until(lambda: _is_ready(server), seconds=300, what="the model server")
            address = f"{server}/v2/models/digit-classifier/infer"
            with urllib.request.urlopen(address, data=body, timeout=300) as answer:
                (output,) = json.load(answer)["outputs"]
        finally:
            process.terminate()
    assert output["shape"] == [10]
    assert sum(finding["score"] for finding in output["data"]) == pytest.approx(1, abs=1e-4)
