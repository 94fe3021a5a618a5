from pathlib import Path

import pytest

from inference_store.proxy.configuration import (
    Configuration,
    WrongConfiguration,
    build_configuration,
    read_configuration_file,
)

GOOD = """\
upstreams:
  - name: detectors
    url: http://mlserver:8080/
    grpc: mlserver:8081
    models: [faces, "yolo*"]
  - name: chat
    url: https://vllm:8000
    protocols: [openai]
models:
  - model: yolo*
    version: "2"
    model_id: traffic
    project_id: roads
    task_type: Object Detection
    sampling: {share: 0.1, key: camera, always_errors: true}
    redactions:
      - {what: metadata, name: driver, how: hash}
    metadata_headers: [X-Camera]
  - model: m-AbC
    capture: false
"""


def _read(tmp_path: Path, text: str) -> Configuration:
    path = tmp_path / "proxy.yaml"
    path.write_text(text)
    return read_configuration_file(path)


def test_a_call_goes_to_the_first_upstream_that_serves_its_model(tmp_path: Path) -> None:
    result = _read(tmp_path, GOOD)
    assert result.upstream("yolo11").name == "detectors"
    assert result.upstream("llama").name == "chat"
    assert result.upstream(None).name == "detectors"
    assert result.upstreams[0].url == "http://mlserver:8080"
    logged = "upstreams:\n  - {name: kserve, cloud_events: /cloudevents}"
    result = _read(tmp_path, GOOD.replace("upstreams:", logged))
    assert result.upstream("unknown").name == "chat"
    assert build_configuration(None, None, ["v2"], "/events").upstreams[0].name == "cloudevents"


def test_an_input_may_be_hashed_if_there_is_a_key(tmp_path: Path) -> None:
    text = GOOD + "    redactions: [{what: input, how: hash}]\n"
    (redaction,) = _read(tmp_path, text).rules("detectors", "m-abc", None).redactions
    assert (redaction.what, redaction.how) == ("input", "hash")
    with pytest.raises(WrongConfiguration, match=r"line 17: .* a hash needs a key"):
        read_configuration_file(tmp_path / "proxy.yaml", has_key=False)


def test_the_first_entry_that_matches_counts(tmp_path: Path) -> None:
    result = _read(tmp_path, GOOD)
    rules = result.rules("detectors", "yolo11", "2")
    assert (rules.model_id, rules.task_type) == ("traffic", "object_detection")
    assert rules.sampling.key == "camera"
    assert rules.metadata_headers == ("x-camera",)
    assert result.rules("detectors", "yolo11", "3").model_id is None
    assert not result.rules("detectors", "m-aBc", None).capture


MISSPELT = "upstreams:\n  - name: a\n    uri: http://x"
MISTAKES = [
    ("upstreams: [", "line 1: expected the node content"),
    ("", "upstreams"),
    ("- 1", "line 1"),
    ("upstreams: []", "line 1: upstreams: Tuple should have at least 1 item"),
    ("upstreams:\n  - name: a\n    url: ftp://x", "line 3: upstreams[0].url: expected http"),
    (MISSPELT, "line 3: upstreams[0].uri: there is no such"),
    (MISSPELT, "the nearest is url"),
    ("upstreams:\n  - name: a", "line 2: upstreams[0]: it has neither url nor grpc"),
    ("upstreams:\n  - {name: a, grpc: x}", "expected host:port"),
    ("upstreams:\n  - {name: a, url: http://x, cloud_events: /e}", "make it an entry of its own"),
    ("upstreams:\n  - {name: a, cloud_events: e}", "cloud_events: String should match"),
    (
        "upstreams:\n  - {name: a, cloud_events: /e}\n  - {name: b, cloud_events: /e}",
        "line 3: upstreams[1].cloud_events: two upstreams have the path /e",
    ),
    ("upstreams:\n  - {name: a, url: 'http://me:pw@x'}", "a name or password in it"),
    ("upstreams:\n  - {name: a, url: http://x}\n  - {name: a, url: http://x}", "two upstreams"),
    ("upstreams:\n  - name: a\n    name: b", "line 3: 'name' is there twice"),
    (
        "upstreams:\n  - name: a\n    url: http://x\n    protocols: [v2, v3]",
        "line 4: upstreams[0].protocols[1]: there is no protocol 'v3'; known are anthropic,",
    ),
    (GOOD + "    upstream: chatt\n", "there is no upstream 'chatt'; known are chat, detectors"),
    (GOOD + "    task_type: dogs\n", "there is no task type 'dogs'"),
    (GOOD + "    sampling: {share: 2}\n", "models[1].sampling.share"),
    (GOOD + "    redactions: [{what: header}]\n", "everything else needs one"),
]


def test_a_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    for text, sentence in MISTAKES:
        with pytest.raises(WrongConfiguration, match=r"proxy\.yaml") as wrong:
            _read(tmp_path, text)
        assert sentence in str(wrong.value), text


def test_reports_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(WrongConfiguration, match=r"proxy\.yaml cannot be read: No such file"):
        read_configuration_file(tmp_path / "proxy.yaml")


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    text = "upstreams:\n  - {name: a, url: x}\nmodells: []\n"
    with pytest.raises(WrongConfiguration) as wrong:
        _read(tmp_path, text)
    assert len(str(wrong.value).splitlines()) == 2
