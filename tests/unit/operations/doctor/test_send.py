"""The api that is asked is the one that the settings name."""

from inference_store.operations.doctor import DoctorSettings, send
from tests.http_stub import Response, serve_http

_TOKEN = "sesame, open again"
_GIVEN = {"kafka_bootstrap_servers": "k:9092", "s3_endpoint_url": "http://s3:9000"}


def test_it_asks_the_api_that_the_settings_name() -> None:
    for settings, address in (
        ({}, "http://127.0.0.1:8080"),
        ({"api_port": 18780}, "http://127.0.0.1:18780"),
        ({"api_host": "0.0.0.0", "api_port": 18780}, "http://127.0.0.1:18780"),
        ({"api_host": "::", "api_port": 18780}, "http://[::1]:18780"),
        ({"api_port": 18780, "url": "https://store.example/"}, "https://store.example"),
    ):
        found = send.find_api(DoctorSettings.model_validate(_GIVEN | settings), None, None)
        assert found.address == address, settings


def test_without_a_token_it_names_loopback() -> None:
    """Else an api without access control, in a cluster say, refuses it."""
    with serve_http(lambda request: Response(body=request.headers["Host"].encode())) as api:
        for token, name in ((None, "localhost"), (_TOKEN, api.removeprefix("http://"))):
            settings = DoctorSettings.model_validate({**_GIVEN, "api_token": token})
            found = send.find_api(settings, api, None)
            assert found.read("GET", "/") == name.encode(), token
            assert _TOKEN not in repr(found)
