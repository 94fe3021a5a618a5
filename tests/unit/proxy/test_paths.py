from inference_store.proxy.paths import PathPrefixes, normalize

PREFIXES = PathPrefixes(["/api/serve/serve-model-*-pred", "/models/"])


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
    assert list(PREFIXES.readings(path)) == [path, "/v2/models/m-7/infer/"]
    assert list(PREFIXES.readings("/models/infer")) == ["/models/infer", "/infer"]
    other = "/api/serve/serve-model-7/8-pred/v2/models/m-7/infer"
    assert list(PREFIXES.readings(other)) == [other]
    assert list(PREFIXES.readings("/models")) == ["/models"]


def test_a_path_is_also_read_as_by_a_server_that_undoes_every_escape() -> None:
    assert list(PREFIXES.readings("/v2%2Fmodels/x%3ay/infer")) == [
        "/v2%2Fmodels/x%3Ay/infer",
        "/v2/models/x:y/infer",
    ]
