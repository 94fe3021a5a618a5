"""The api is not open to other machines by accident."""

import pytest

from inference_store.api.access import OpenToAll, is_loopback, refuse_open_address
from inference_store.store.settings import ApiSettings


def _settings(**changes: object) -> ApiSettings:
    return ApiSettings(_env_file=None, **changes)  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_another_address_needs_a_token(host: str) -> None:
    with pytest.raises(OpenToAll, match="INFERENCE_STORE_API_TOKEN"):
        refuse_open_address(_settings(api_host=host))
    with pytest.raises(OpenToAll):
        refuse_open_address(_settings(api_host=host, api_token=""))
    refuse_open_address(_settings(api_host=host, api_token="sesame"))
    refuse_open_address(_settings(api_host=host, auth="off"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert is_loopback(host)
    refuse_open_address(_settings(api_host=host))
