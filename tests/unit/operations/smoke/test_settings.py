"""Which api the smoke test asks, if no argument names it."""

from inference_store.operations.smoke.settings import SmokeSettings

_GIVEN = {"kafka_bootstrap_servers": "k:9092", "s3_endpoint_url": "http://s3:9000"}


def test_it_asks_the_api_that_the_settings_name() -> None:
    for settings, address in (
        ({}, "http://127.0.0.1:8080"),
        ({"api_port": 18780}, "http://127.0.0.1:18780"),
        ({"api_host": "0.0.0.0", "api_port": 18780}, "http://127.0.0.1:18780"),
        ({"api_host": "::", "api_port": 18780}, "http://[::1]:18780"),
        (
            {"api_host": "store.example", "api_tls_certificate_file": __file__},
            "https://store.example:8080",
        ),
        ({"api_port": 18780, "url": "https://store.example"}, "https://store.example"),
    ):
        assert SmokeSettings.model_validate(_GIVEN | settings).api_address == address, settings
