"""Which calls each protocol recognises, by method and path."""

from inference_store.proxy.protocols import PROTOCOLS, recognise_call

SERVICE = "/inference.GRPCInferenceService"
CALLS = [
    ("v2", "/v2/models/digits/infer", "infer", "digits", None),
    ("v2", "/v2/models/digits/infer/", "infer", "digits", None),
    ("v2", "/v2/models/digits/versions/3/infer", "infer", "digits", "3"),
    ("v2", "/v2/models/digits/versions/v1.2%2F3/infer/", "infer", "digits", "v1.2/3"),
    ("v2", "/v2/models/m-2vTeoZfP/infer/", "infer", "m-2vTeoZfP", None),
    ("v2", "/v2/models/team%2Fdigits%20one/infer", "infer", "team/digits one", None),
    ("v2", "/v2/models/a%ff%zz/infer", "infer", "a\ufffd%zz", None),
    ("v2", "/v2/models/versions/infer", "infer", "versions", None),
    ("v2", "/v2/models/llm/generate", "infer", "llm", None),
    ("v2", "/v2/models/llm/versions/1/generate", "infer", "llm", "1"),
    ("v2", "/v2/models/llm/generate_stream", "stream", "llm", None),
    ("v2", "/v2/models/llm/versions/1/infer_stream/", "stream", "llm", "1"),
    ("v2-grpc", f"{SERVICE}/ModelInfer", "infer", None, None),
    ("v2-grpc", f"{SERVICE}/ModelStreamInfer", "stream", None, None),
    ("kserve-v1", "/v1/models/flowers:predict", "infer", "flowers", None),
    ("kserve-v1", "/v1/models/a%2Fb:explain", "infer", "a/b", None),
    ("kserve-v1", "/v1/models/flowers%3Apredict", "infer", "flowers", None),
    ("kserve-v1", "/v1/models/a:b:predict", "infer", "a:b", None),
    ("kserve-v1", "/v1/models/flowers/versions/3:predict", "infer", "flowers", "3"),
    ("chariot-v2", "/infer", "infer", None, None),
    ("openai", "/v1/chat/completions", "infer", None, None),
    ("openai", "/openai/v1/chat/completions", "infer", None, None),
    ("openai", "/openai/v1/completions/", "infer", None, None),
    ("openai", "/openai/deployments/gpt%204/chat/completions", "infer", "gpt 4", None),
    ("openai-responses", "/v1/responses", "infer", None, None),
    ("openai-responses", "/openai/responses", "infer", None, None),
    ("openai-embeddings", "/v1/embeddings", "infer", None, None),
    ("openai-embeddings", "/openai/deployments/ada/embeddings", "infer", "ada", None),
    ("anthropic", "/v1/messages", "infer", None, None),
    ("mlflow", "/invocations", "infer", None, None),
    ("torchserve", "/predictions/resnet-18", "infer", "resnet-18", None),
    ("torchserve", "/explanations/resnet-18/2.0", "infer", "resnet-18", "2.0"),
    ("omi", "/ModzyModel/Run", "infer", None, None),
]
OTHERS = {
    "v2": [
        *("", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/repository/index"),
        *("/v2/models/digits", "/v2/models/digits/ready", "/v2/models/digits/versions/1"),
        *("/v2/models/digits/versions/1/ready", "/v2/models/digits/versions//infer"),
        *("/v2/models//infer", "/v2/models/team/digits/infer", "/v2/models/digits/infer//"),
        *("/v2/models/digits/infers", "/v2/models/digits/infer\n", "/V2/models/digits/infer"),
        *("/v2/repository/models/digits/load", "/v2/repository/models/infer/unload"),
        "/prefix/v2/models/digits/infer",
    ],
    "v2-grpc": [f"{SERVICE}/ModelReady", "/ModelInfer", ""],
    "kserve-v1": ["/v1/models/flowers", "/v1/models/flowers:classify", "/v1/models"],
    "chariot-v2": ["/ready", "/v2/models/m/infer"],
    "openai": ["/v1/embeddings", "/v1/models", "/openai/deployments/a/b/completions"],
    "openai-responses": ["/v1/responses/resp_1/cancel", "/responses"],
    "openai-embeddings": ["/v1/completions"],
    "anthropic": ["/v1/messages/count_tokens", "/v1/messages/batches"],
    "mlflow": ["/ping", "/invocations/x"],
    "torchserve": ["/predictions", "/models/resnet-18", "/predictions/a/b/c"],
    "omi": ["/ModzyModel/Status", "/ModzyModel/Shutdown", "/x.ModzyModel/Run"],
}


def test_a_call() -> None:
    assert {name for name, *_ in CALLS} == OTHERS.keys() == PROTOCOLS.keys() - {"raw", "raw-grpc"}
    for name, path, kind, model, version in CALLS:
        protocol = PROTOCOLS[name]
        method = "POST" if protocol.transport == "rest" else path
        call = recognise_call([name], protocol.transport, method, path)
        assert call is not None, path
        found = (call.protocol, call.kind, call.model, call.version)
        assert found == (protocol, kind, model, version), path


def test_no_call() -> None:
    for name, paths in OTHERS.items():
        transport = PROTOCOLS[name].transport
        for path in paths:
            method = "POST" if transport == "rest" else path
            assert recognise_call([name], transport, method, path) is None, path
    for name, path, *_ in CALLS:
        if PROTOCOLS[name].transport == "rest":
            for method in ("GET", "OPTIONS", "HEAD", "post"):
                assert recognise_call([name], "rest", method, path) is None, (method, path)


def test_raw_recognises_every_call_after_the_other_protocols() -> None:
    assert recognise_call(["raw"], "rest", "GET", "/anything") is not None
    assert recognise_call([], "rest", "GET", "/anything") is None
    assert recognise_call(["raw"], "grpc", "/a.B/C", "/a.B/C") is None
    for path, name in (("/v1/completions", "openai"), ("/v1/embeddings", "raw")):
        call = recognise_call(["raw", "openai"], "rest", "POST", path)
        assert call is not None
        assert call.protocol.name == name
