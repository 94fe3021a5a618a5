"""The commands of docs/how-to/capture.md, unchanged."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.proxy_process import Proxy
from tests.upstreams.model_servers import MLServer
from tests.upstreams.pictures import photograph

pytestmark = [pytest.mark.real_upstreams, pytest.mark.real_curl]
CAPTURE = (Path(__file__).parents[3] / "docs" / "how-to" / "capture.md").read_text()


def test_a_picture_is_sent(mlserver: MLServer, before_mlserver: Proxy, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(photograph())
    commands = re.findall(r"^```\n(.*?)^```", CAPTURE, re.DOTALL | re.MULTILINE)
    (command,) = [candidate for candidate in commands if "photo.jpg" in candidate]
    assert "127.0.0.1:8090" in command
    direct, proxied = (
        subprocess.run(
            ["bash", "-c", command.replace("127.0.0.1:8090", address)],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        ).stdout
        for address in (mlserver.http, before_mlserver.http)
    )
    assert proxied == direct
    answer = json.loads(proxied)
    assert answer["id"] == "frame-987"
    assert answer["outputs"][0]["data"][0]["label"] == "face"
