"""The api and the admin ports over https, without any port over plain http."""

import json
import ssl
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.servers.certificates import Authority
from tests.servers.fixtures import MakeEnvironment
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until
from tests.service_process import Service


@pytest.mark.parametrize("name", ["api", "retention"])
def test_the_ports_speak_tls(
    service_environment: MakeEnvironment, authority: Authority, tmp_path: Path, name: str
) -> None:
    pair = authority.issue("service")
    port = free_port()
    files = {"CERTIFICATE_FILE": str(pair.certificate), "KEY_FILE": str(pair.key)}
    tls = {f"{of}_TLS_{kind}": path for of in ("API", "ADMIN") for kind, path in files.items()}
    if name != "api":
        tls = {kind: path for kind, path in tls.items() if kind.startswith("ADMIN")}
    service = Service(name, service_environment(API_PORT=str(port), **tls), tmp_path)
    service.trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    try:
        service.wait_ready()
        urls = [f"{service.admin}/health/live"]
        if name == "api":
            urls.append(f"https://127.0.0.1:{port}/v1/models")
        for url in urls:
            with urlopen(url, context=service.trusted, timeout=60) as answer:
                assert json.load(answer)
            with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
                urlopen(url, timeout=60)
            with pytest.raises((URLError, ConnectionError)):
                urlopen(url.replace("https", "http"), timeout=60)
    finally:
        service.stop()


def test_service_ends_if_the_key_is_of_another_certificate(
    service_environment: MakeEnvironment, authority: Authority, tmp_path: Path
) -> None:
    environment = service_environment(
        API_TLS_CERTIFICATE_FILE=str(authority.issue("one").certificate),
        API_TLS_KEY_FILE=str(authority.issue("other").key),
    )
    service = Service("api", environment, tmp_path)
    wait_until(lambda: not service.process.running, seconds=180, what="the end")
    service.stop()
    assert "INFERENCE_STORE_API_TLS_KEY_FILE are no pair" in service.text
