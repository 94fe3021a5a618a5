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
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    from inference_store.local.demo.sources import digit_requests  # noqa: PLC0415

    small, data = served_models.SmallClassifier(), load_digits()
    requests = {int(request.items[1][2]): request for request in digit_requests()}
    unseen = list(requests)
    training = [sample for sample in range(len(data.target)) if sample not in unseen]
    trained = LogisticRegression(max_iter=2000)
    trained.fit(data.data[training] / 16, data.target[training])
    assert (
        unseen == train_test_split(range(len(data.target)), test_size=HELD_OUT, random_state=7)[1]
    )
    right = 0
    for sample, request in requests.items():
        findings = small.classify(request.content)
        (shares,) = trained.predict_proba([data.data[sample] / 16])
        assert {finding["label"] for finding in findings} == set(LABELS)
        assert findings[0]["label"] == LABELS[shares.argmax()]
        assert findings[0]["score"] == pytest.approx(shares.max(), abs=0.001)
        assert request.items[0] == ("true_label", "string", str(data.target[sample]))
        right += findings[0]["label"] == str(data.target[sample])
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
        with subtests.test(content=content), pytest.raises(served_models.Refusal):
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
