from inference_store.proxy.configuration import (
    Configuration,
    ModelEntry,
    RedactionEntry,
    UpstreamEntry,
    find_rules,
)
from inference_store.proxy.exchange import Transport
from inference_store.proxy.routing import PathPrefixes, Routing, normalize

DETECTORS = UpstreamEntry(name="detectors", url="http://a:1", grpc="a:2", models=("yolo*", "m-AB"))
CHAT = UpstreamEntry(name="chat", url="http://b:1", protocols=("openai",))
RAW = UpstreamEntry(name="odd", url="http://c:1", protocols=("raw",), models=("odd",))
MODELS = [
    ModelEntry(model="yolo-quiet", capture=False),
    ModelEntry(model="yolo*", version="2", model_id="two"),
    ModelEntry(model="m-ab", model_id="ab"),
    ModelEntry(upstream="chat", project_id="talk"),
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


def test_a_model_is_captured_by_what_its_upstream_speaks() -> None:
    route = ROUTING.route("rest", "POST", "/v2/models/odd/infer")
    assert route.call is not None
    assert (route.upstream.name, route.call.protocol.name) == ("odd", "raw")


def test_a_model_that_only_the_message_names() -> None:
    route = ROUTING.route("rest", "POST", "/v1/chat/completions", "llama")
    assert route.call is not None
    assert (route.upstream.name, route.model, route.rules.project_id) == ("chat", "llama", "talk")


def test_does_not_route_unknown_names() -> None:
    only = Routing(Configuration([RAW]))
    assert only.route("rest", "GET", "/v2/models/x/ready").upstream is RAW


def test_long_names_are_not_remembered() -> None:
    routing = Routing(Configuration([DETECTORS]))
    for number in range(3):
        name = f"yolo{number}" + "x" * 100_000
        assert routing.route("rest", "POST", f"/v2/models/{name}/infer").model == name
    assert routing._remembered.cache_info().currsize == 0


def test_collects_redactions_if_only_the_body_names_the_model() -> None:
    private = ModelEntry(model="private", redactions=(RedactionEntry(what="input"),))
    quiet = ModelEntry(model="quiet", capture=False)
    elsewhere = ModelEntry(upstream="odd", redactions=(RedactionEntry(what="header", name="a"),))
    routing = Routing(Configuration([CHAT, RAW], [private, quiet, elsewhere]))
    rules = routing.route("rest", "POST", "/v1/chat/completions").rules
    assert [redaction.what for redaction in rules.if_unnamed] == ["input"]
    rules_by_name = find_rules(rules.by_name, "quiet", None)
    assert rules_by_name is not None
    assert not rules_by_name.capture


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


def test_a_path_is_also_read_as_by_a_server_that_undoes_every_escape() -> None:
    assert list(BOTH.readings("/v2%2Fmodels/x%3ay/infer")) == [
        "/v2%2Fmodels/x%3Ay/infer",
        "/v2/models/x:y/infer",
    ]
