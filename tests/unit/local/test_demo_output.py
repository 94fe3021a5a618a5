"""The output of the demo is readable, and its commands can be pasted."""

import base64
import io
import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_store.local.demo.models import FACES
from inference_store.local.demo.queries import QUERIES, describe_incomplete, short
from inference_store.local.demo.rest import Rest
from inference_store.local.demo.screen import Screen
from inference_store.local.demo.story import own_picture

REST = Rest("http://127.0.0.1:8080")


def test_every_query_is_a_command_that_a_shell_reads() -> None:
    for query in QUERIES:
        words = shlex.split(REST.curl(query.path, query.body).replace("\\\n", " "))
        assert words[:3] == ["curl", "-s", REST.address + query.path]


def test_ones_own_picture_is_sent_as_the_protocol_has_it(tmp_path: Path) -> None:
    printed = own_picture("http://127.0.0.1:8090", REST)
    send, _, _ = printed.partition("\\\n  | curl")
    (tmp_path / "frame.jpg").write_bytes(bytes(range(256)) * 8)
    written = subprocess.check_output(send, shell=True, text=True, cwd=tmp_path)
    (image,) = json.loads(written)["inputs"]
    assert base64.b64decode(image["data"][0], validate=True) == bytes(range(256)) * 8


def test_an_answer_is_shown_in_one_line_an_inference() -> None:
    metadata = [{"key": "photograph", "type": "string", "value": "coins"}]
    predictions = [{"label": "face", "score": 0.314}]
    item = {"inference_id": "frame-00007", "metadata": metadata, "predictions": predictions}
    assert short({"items": [item]}) == "→ frame-00007 (coins): face 0.31"
    assert short({"items": []}) == "→ none"
    # the true label and the best three of a digit
    predictions = [{"label": label, "score": 0.4} for label in "1742"]
    metadata = [{"key": "true_label", "type": "string", "value": "8"}]
    item = {"inference_id": "digit-1553", "metadata": metadata, "predictions": predictions}
    assert short({"items": [item]}) == "→ digit-1553 (it is 8): 1 0.40, 7 0.40, 4 0.40"


def test_progress_into_a_file_is_a_line_now_and_then() -> None:
    out = io.StringIO()
    screen = Screen(out)
    for number in range(100):
        screen.progress(f"{number} of 100")
    screen.say("done")
    assert out.getvalue().count("\n") <= 2


@dataclass(frozen=True, slots=True)
class _Counting(Rest):
    """Says how many captures of the face detector are not whole."""

    incomplete: int = 0

    def count(self, model_id: str, body: Mapping[str, Any]) -> int:
        assert "request_problem IS NOT NULL" in body["filter"]
        return self.incomplete if model_id == FACES.model_id else 0


def test_reports_incomplete_captures_only_if_there_are_any() -> None:
    assert describe_incomplete(_Counting(REST.address)) == ""
    sentence = describe_incomplete(_Counting(REST.address, 3))
    assert sentence.startswith("# 3 captures of face-detector are not whole")
    assert sentence.count("\n# ") == 0
