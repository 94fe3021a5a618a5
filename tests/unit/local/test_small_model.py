"""The classifier of digits finds what its training does, and needs none of the demo's packages."""

import base64
import subprocess
import sys

import pytest

from inference_store.local.demo import served_models
from inference_store.local.demo.models import HELD_OUT, LABELS
from inference_store.local.folder import HOST
from tests.console.pictures import encode_png
from tests.http_requests import answers, ask
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


def test_it_finds_what_its_training_finds() -> None:
    pytest.importorskip("cv2", reason="the demo's packages are not installed")
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    from inference_store.local.demo.feed import digit_requests  # noqa: PLC0415
    from inference_store.local.demo.sources import held_out_digits  # noqa: PLC0415

    digits, small, data = held_out_digits(), served_models.SmallClassifier(), load_digits()
    assert [digit.true_label for digit in digits] == [str(data.target[d.sample]) for d in digits]
    unseen = {digit.sample for digit in digits}
    training = [sample for sample in range(len(data.target)) if sample not in unseen]
    trained = LogisticRegression(max_iter=2000)
    trained.fit(data.data[training] / 16, data.target[training])
    assert len(digits) == HELD_OUT
    right = 0
    for digit, request in zip(digits, digit_requests(digits), strict=True):
        findings = small.classify(request.content)
        (shares,) = trained.predict_proba([digit.pixels / 16])
        assert {finding["label"] for finding in findings} == set(LABELS)
        assert findings[0]["label"] == LABELS[shares.argmax()]
        assert findings[0]["score"] == pytest.approx(shares.max(), abs=0.001)
        right += findings[0]["label"] == digit.true_label
    assert right / HELD_OUT > 0.95


def test_reads_every_form_of_a_png_alike() -> None:
    grey = served_models.SmallClassifier().classify(encode_png(8, 8, (b"\0" + b"\x70" * 8) * 8))
    for colour, pixel in ((2, b"\x70\x70\x70"), (4, b"\x70\0"), (6, b"\x70\x70\x70\xff")):
        picture = encode_png(8, 8, (b"\0" + pixel * 8) * 8, colour=colour)
        assert served_models.SmallClassifier().classify(picture) == grey, colour
    enlarged = encode_png(64, 64, (b"\0" + b"\x70" * 64) * 64)
    assert served_models.SmallClassifier().classify(enlarged) == grey


def test_rejects_data_that_is_no_small_png(subtests: pytest.Subtests) -> None:
    lines = b"\0\x01\x02\0\x03\x04"
    for content in (
        b"",
        b"no picture",
        encode_png(2, 2, b"\0\x01"),
        encode_png(2, 2, b"\x09\x01\x02\x09\x03\x04"),
        encode_png(2, 2, lines, colour=3),
        encode_png(2, 2, lines, depth=16),
        encode_png(served_models.MOST_PIXELS, 2, b"\0"),
        encode_png(60_000, 60_000, b"\0"),
        encode_png(0, 2, b"\0"),
        encode_png(2, 2, lines)[:20],
        encode_png(2, 2, lines).replace(b"x\x9c", b"xx"),
    ):
        with subtests.test(content=content), pytest.raises(served_models.NoPicture):
            served_models.SmallClassifier().classify(content)


def test_it_is_served_without_the_demos_packages() -> None:
    rest, over_grpc = free_port(), free_port()
    command = [sys.executable, "-c", _CODE, str(rest), str(over_grpc), "--small"]
    picture = base64.b64encode(encode_png(8, 8, (b"\0" + b"\x07" * 8) * 8)).decode()
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [picture]}
    server = f"http://{HOST}:{rest}"
    with subprocess.Popen([*command, "--host", "0.0.0.0"]) as process:
        try:
            ready = f"{server}/v2/health/ready"
            wait_until(lambda: answers(ready), seconds=300, what="the model server")
            address = f"{server}/v2/models/digit-classifier/infer"
            (output,) = ask(address, {"inputs": [tensor]})["outputs"]
        finally:
            process.terminate()
    assert output["shape"] == [10]
    assert sum(finding["score"] for finding in output["data"]) == pytest.approx(1, abs=1e-4)
