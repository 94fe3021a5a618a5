"""Where a call goes, and whether it is captured; the metadata in its headers."""

import json
import socket
from base64 import b64encode
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_store.inference.metadata import read_metadata
from inference_store.platform.serving import Connections, PortTaken
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import Captures
from inference_store.proxy.configuration import (
    Configuration,
    Redaction,
    Rules,
    UpstreamEntry,
    join_redactions,
)
from inference_store.proxy.exchange import Transport, from_header
from inference_store.proxy.grpc import Calls, open_grpc_port
from inference_store.proxy.routing import PathPrefixes, Routing, normalize
from tests.settings import make_settings

DETECTORS = UpstreamEntry(name="detectors", url="http://a:1", grpc="a:2", models=("yolo*", "m-AB"))
CHAT = UpstreamEntry(name="chat", url="http://b:1", protocols=("openai",))
RAW = UpstreamEntry(name="odd", url="http://c:1", protocols=("raw",), models=("odd",))
MODELS = [
    Rules(model="yolo-quiet", capture=False),
    Rules(model="yolo*", version="2", model_id="two"),
    Rules(model="m-ab", model_id="ab"),
    Rules(upstream="chat", project_id="talk"),
]
PREFIXES = PathPrefixes(["/api/serve/serve-model-*-pred"])
ROUTING = Routing(Configuration([DETECTORS, RAW, CHAT], MODELS), PREFIXES)


def test_a_captured_call() -> None:
    for path, model, model_id in (
        ("/v2/models/yolo/infer", "yolo", None),
        ("/v2/models/yolo/versions/2/infer", "yolo", "two"),
        ("/v2/models/yolo/versions/3/infer", "yolo", None),
        ("/v2/models/m-aB/infer/", "m-aB", "ab"),
        ("/v2/%6dodels/yolo/%69nfer", "yolo", None),
        ("/v2%2Fmodels%2Fyolo%2Finfer", "yolo", None),
        ("//v2/models/x/../yolo/infer", "yolo", None),
        ("/v2/models/yolo%2Fa/infer", "yolo/a", None),
        ("/api/serve/serve-model-1-pred/v2/models/m-AB/infer/", "m-AB", "ab"),
    ):
        route = ROUTING.route("rest", "POST", path)
        assert route.call is not None, path
        assert route.upstream is DETECTORS, path
        assert (route.model, route.rules.model_id) == (model, model_id), path


def test_a_call_that_passes_through() -> None:
    for method, path, upstream in (
        ("GET", "/v2/health/live", DETECTORS),
        ("GET", "/v2/models/yolo/ready", DETECTORS),
        ("GET", "/v2/models/llama/ready", CHAT),
        ("POST", "/v2/repository/models/llama/load", CHAT),
        ("POST", "/v2/models/yolo-quiet/infer", DETECTORS),
        # its upstream does not speak V2
        ("POST", "/v2/models/llama/infer", CHAT),
    ):
        route = ROUTING.route("rest", method, path)
        assert (route.upstream, route.call) == (upstream, None), path


def test_marks_calls_that_may_be_inferences() -> None:
    cases: list[tuple[Transport, str, str, bool]] = [
        ("rest", "POST", "/v2/models/llama/infer", True),
        ("rest", "POST", "/v2/models/yolo/predict", True),
        ("rest", "POST", "/v3/models/yolo/infer", True),
        ("rest", "GET", "/v2/models/yolo/ready", False),
        ("rest", "POST", "/v2/models/yolo-quiet/infer", False),
        ("rest", "POST", "/v2/%72epository/models/yolo/load", False),
        ("rest", "POST", "/v2/models/yolo/versions/1/trace/setting", False),
        ("rest", "POST", "/v1/messages/count_tokens", False),
        ("grpc", "POST", "/inference.GRPCInferenceService/ModelReady", False),
        ("grpc", "POST", "/grpc.health.v1.Health/Check", False),
        ("grpc", "POST", "/inference.GRPCInferenceService/ModelInferAll", True),
    ]
    for transport, method, path, is_unrecognised in cases:
        route = ROUTING.route(transport, method, path)
        assert (route.call, route.is_unrecognised) == (None, is_unrecognised), path


def test_a_call_that_only_its_upstream_or_its_message_explains() -> None:
    route = ROUTING.route("rest", "POST", "/v2/models/odd/infer")
    assert route.call is not None
    assert (route.upstream, route.call.protocol.name) == (RAW, "raw")
    route = ROUTING.route("rest", "POST", "/v1/chat/completions", "llama")
    assert route.call is not None
    assert (route.upstream, route.model, route.rules.project_id) == (CHAT, "llama", "talk")
    # an unknown name goes to the first upstream
    only = Routing(Configuration([RAW]))
    assert only.route("rest", "GET", "/v2/models/x/ready").upstream is RAW


def test_long_names_are_not_remembered() -> None:
    routing = Routing(Configuration([DETECTORS]))
    for number in range(3):
        name = f"yolo{number}" + "x" * 100_000
        assert routing.route("rest", "POST", f"/v2/models/{name}/infer").model == name
    assert routing._remembered.cache_info().currsize == 0


def test_collects_redactions_if_only_the_body_names_the_model() -> None:
    private = Rules(model="private", redactions=(Redaction(what="input"),))
    quiet = Rules(model="quiet", capture=False)
    elsewhere = Rules(upstream="odd", redactions=(Redaction(what="header", name="a"),))
    configuration = Configuration([CHAT, RAW], [private, quiet, elsewhere])
    assert Routing(configuration).route("rest", "POST", "/v1/chat/completions").model is None
    rules = configuration.list_rules("chat")
    assert [redaction.what for redaction in join_redactions(rules)] == ["input"]
    assert not configuration.rules("chat", "quiet", None).capture


BOTH = PathPrefixes(["/api/serve/serve-model-*-pred", "/models/"])


def test_the_normal_form_of_a_path() -> None:
    for path, normal in (
        ("/v2/models/x/infer", "/v2/models/x/infer"),
        ("/v2/models/x/infer/", "/v2/models/x/infer/"),
        ("/v2/%6dodels/x/%69nfer", "/v2/models/x/infer"),
        ("/v2/models/a%2fb%c3%a9/infer", "/v2/models/a%2Fb%C3%A9/infer"),
        ("/v2/%zz/%4", "/v2/%zz/%4"),
        ("//v2///models/x/infer//", "/v2/models/x/infer/"),
        ("/v2/./models/y/../x/infer/.", "/v2/models/x/infer/"),
        ("/v2/%2e%2E/v2/models/x/infer", "/v2/models/x/infer"),
        ("/../..", "/"),
        ("/", "/"),
        ("/.well-known/x", "/.well-known/x"),
    ):
        assert normalize(path) == normal


def test_a_path_is_read_with_and_without_a_prefix() -> None:
    path = "/api/serve/serve-model-7-pred/v2/models/m-7/infer/"
    assert list(BOTH.readings(path)) == [path, "/v2/models/m-7/infer/"]
    assert list(BOTH.readings("/models/infer")) == ["/models/infer", "/infer"]
    other = "/api/serve/serve-model-7/8-pred/v2/models/m-7/infer"
    assert list(BOTH.readings(other)) == [other]
    assert list(BOTH.readings("/models")) == ["/models"]


# The gRPC port that cannot be opened.


async def test_a_port_that_is_taken_is_named_with_its_settings() -> None:
    configuration = Configuration([UpstreamEntry(name="one", grpc="127.0.0.1:1")])
    nobody = cast(Captures, cast(Any, None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port_number = listener.getsockname()[1]
        settings = make_settings(
            ProxySettings, proxy_upstream_grpc="127.0.0.1:1", proxy_grpc_port=port_number
        )
        connections = Connections("proxy", 10, 10)
        routing = Routing(configuration)
        with pytest.raises(PortTaken) as refused:
            await open_grpc_port(
                settings, configuration, routing, nobody, connections=connections, calls=Calls()
            )
    assert str(refused.value) == (
        f"cannot listen on 127.0.0.1:{port_number} for gRPC."
        " Change INFERENCE_STORE_PROXY_HOST and INFERENCE_STORE_PROXY_GRPC_PORT."
    )


# The header's text becomes an envelope that the ingester reads, whatever it holds.

NAME = "inference-store-metadata"
ITEM = '{"key": "frame", "type": "int", "value": "7"}'


def test_headers_are_an_envelope() -> None:
    """Several are one list, and so are those that a proxy joined; by key the last one wins."""
    shot, later = ITEM.replace("frame", "shot"), ITEM.replace("7", "8")
    raw = '[{"key": "city", "type": "str", "value": "Zürich"}]'.encode()
    frame, city = {"frame": "7"}, {"city": "Zürich"}
    cases: list[tuple[list[tuple[str, str]], dict[str, str]]] = [
        ([(NAME, f"[{ITEM}]")], frame),
        ([(NAME, f'{{"extended_metadata": [{ITEM}]}}')], frame),
        ([(NAME, ITEM)], frame),
        ([(NAME, raw.decode("latin-1"))], city),
        ([(NAME, raw.decode())], city),
        ([(f"{NAME}-bin", b64encode(raw).rstrip(b"=").decode())], city),
        ([(NAME, f"[{ITEM}]"), (NAME, f"[{later}]"), ("other", "x")], {"frame": "8"}),
        ([(NAME, f"[{ITEM}], [{shot}]")], frame | {"shot": "7"}),
    ]
    for headers, expected in cases:
        entries = read_metadata(from_header(headers)).entries
        assert {entry.key: entry.value for entry in entries} == expected, headers
    assert from_header([("content-type", "application/json")]) is None
    assert from_header([(NAME, "  ")]) is None
    result = from_header([(NAME, "frame=7")])
    assert result == b'"frame=7"'
    assert "not JSON" in (read_metadata(result).problem or "")


@given(st.lists(st.text()))
@example(["1\0"])
@example(["1\0", "2"])
def test_any_text_becomes_json(values: list[str]) -> None:
    result = from_header([(NAME, value) for value in values])
    if result is not None:
        json.loads(result)
