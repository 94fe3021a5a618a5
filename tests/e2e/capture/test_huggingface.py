"""mlserver-huggingface's own runtime: one text and the arguments beside it are one inference."""

import json
from typing import Any

import httpx
import pytest

from tests.upstreams.clients import Clients, tensor
from tests.upstreams.huggingface import HuggingFace

from .real_line import LIST, RealLine, hash_content, post, read_metadata

pytestmark = [
    pytest.mark.real_upstreams,
    pytest.mark.real_huggingface,
    pytest.mark.real_triton,
    pytest.mark.real_kserve,
]
PROMPT = "once upon a time"
ARGUMENTS = {"max_new_tokens": ("INT64", 5), "do_sample": ("INT8", False)}


def make_arguments() -> list[Any]:
    """A tensor each, as the runtime wants them."""
    return [
        {
            "name": name,
            "datatype": datatype,
            "shape": [1],
            "data": [value],
            "parameters": {"content_type": "raw"},
        }
        for name, (datatype, value) in ARGUMENTS.items()
    ]


def test_a_generated_text(real_line: RealLine, huggingface: HuggingFace) -> None:
    text = {"name": "args", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}
    body = {"id": "story-1", "parameters": {"metadata": LIST}, "inputs": [text, *make_arguments()]}
    answer = post(f"{real_line.proxies['huggingface'].url}/v2/models/story/infer", body)
    generated = json.loads(answer.json()["outputs"][0]["data"][0])["generated_text"]
    assert generated.startswith(PROMPT)

    (item,) = real_line.captured("story", 1)
    assert (item["inference_id"], item["ok"], item["batch_size"]) == ("story-1", True, 1)
    assert real_line.blob(item, "data") == PROMPT.encode()
    assert item["data_hash"] == hash_content(PROMPT.encode())
    assert [prediction["text"] for prediction in item["predictions"]] == [generated]
    metadata = read_metadata(item)
    assert metadata["frame_number"] == "9001"
    assert json.loads(metadata["arguments"]) == {name: v for name, (_, v) in ARGUMENTS.items()}

    (again,) = real_line.again("story")
    assert again.messages == (json.dumps(body).encode(),)
    url = huggingface.url + again.path
    sent = httpx.post(url, content=again.messages[0], headers=again.headers, timeout=120)
    assert sent.content == answer.content


def test_classified_texts(real_line: RealLine, clients: Clients) -> None:
    proxy = real_line.proxies["huggingface"]
    text = {"name": "args", "datatype": "BYTES", "shape": [1], "data": ["a good day"]}
    post(f"{proxy.url}/v2/models/sentiment/infer", {"id": "good", "inputs": [text]})
    tensors = [tensor("args", "BYTES", [1], [b"a bad day"])]
    clients.infer("grpc", proxy.grpc, "sentiment", tensors, id="bad")
    two = {"name": "args", "datatype": "BYTES", "shape": [2], "data": ["one", "two"]}
    failed = httpx.post(
        f"{proxy.url}/v2/models/sentiment/infer",
        json={"id": "failed", "inputs": [two]},
        timeout=120,
    )
    assert (failed.status_code, failed.text) == (500, "Internal Server Error")

    items = real_line.captured("sentiment", 3)
    assert [item["inference_id"] for item in items] == ["good", "bad", "failed"]
    assert [item["ok"] for item in items] == [True, True, False]
    assert [item["top_label"] for item in items] == ["POSITIVE", "NEGATIVE", None]
    assert min(classified["top_score"] for classified in items[:2]) > 0.9
    assert [real_line.blob(classified, "data") for classified in items[:2]] == [
        b"a good day",
        b"a bad day",
    ]
    assert (items[2]["http_status"], items[2]["error"]) == (500, "Internal Server Error")
