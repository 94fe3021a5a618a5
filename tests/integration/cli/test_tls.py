"""The api and the admin ports over https, without any port over plain http."""

import json
import ssl
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.servers.certificates import Authority
from tests.servers.fixtures import MakeEnvironment
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until
from tests.service_process import Service

from .running_api import run_api


def test_the_ports_speak_tls(
    service_environment: MakeEnvironment, authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("service")
    files = {"CERTIFICATE_FILE": str(pair.certificate), "KEY_FILE": str(pair.key)}
    admin = {f"ADMIN_TLS_{kind}": path for kind, path in files.items()}
    api = {f"API_TLS_{kind}": path for kind, path in files.items()}
    port = str(free_port())
    environments = {
        "api": service_environment(API_PORT=port, **admin, **api),
        "retention": service_environment(**admin),
    }
    services = [Service(name, each, tmp_path) for name, each in environments.items()]
    trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    try:
        urls = [f"https://127.0.0.1:{port}/v1/models"]
        for service in services:
            service.trusted = trusted
            service.wait_ready()
            urls.append(f"{service.admin}/health/live")
        for url in urls:
            with urlopen(url, context=trusted, timeout=300) as answer:
                assert json.load(answer)
            with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
                urlopen(url, timeout=300)
            with pytest.raises((URLError, ConnectionError)):
                urlopen(url.replace("https", "http"), timeout=300)
        renewed = authority.issue("service").certificate.read_text()
        for url in urls:  # with the renewed files, which they read again by themselves
            shown = ssl.get_server_certificate(("127.0.0.1", urlsplit(url).port or 0), timeout=300)
            assert shown.strip() == renewed.strip()
    finally:
        for service in services:
            service.stop()


def test_service_ends_if_the_key_is_of_another_certificate(
    service_environment: MakeEnvironment, authority: Authority, tmp_path: Path
) -> None:
    environment = service_environment(
        API_TLS_CERTIFICATE_FILE=str(authority.issue("one").certificate),
        API_TLS_KEY_FILE=str(authority.issue("other").key),
    )
    with run_api(environment, tmp_path) as api:
        wait_until(lambda: not api.process.running, seconds=300, what="the end")
    assert "INFERENCE_STORE_API_TLS_KEY_FILE are no pair" in api.text
