"""The contents of compose.yaml: its settings exist, and its images can be replaced."""

import base64
import re
from typing import Any

import pytest
import yaml

from inference_store.cli.main import COMMANDS
from inference_store.platform.settings import PREFIX, names
from inference_store.proxy.configuration import read_configuration_file
from inference_store.proxy.protocols import PROTOCOLS

from .rendering import CHART, ROOT

TEXT = (ROOT / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXAMPLE = (ROOT / "compose.env.example").read_text()
OURS = {"migrate", "ingester", "api", "retention", "proxy", "smoke"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_can_be_replaced(name: str) -> None:
    match = re.fullmatch(r"\$\{([A-Z0-9_]+_IMAGE):-(.+:.+)\}", SERVICES[name]["image"])
    assert match, SERVICES[name]["image"]
    variable, default = match.groups()
    assert f"{variable}={default}" in EXAMPLE
    assert not default.endswith(":latest")


def test_the_images_are_those_of_the_chart() -> None:
    dev = yaml.safe_load((CHART / "values.yaml").read_text())["dev"]
    for name in ("postgres", "kafka", "s3"):
        assert dev[name]["image"] in SERVICES[name]["image"]


def test_every_setting_exists() -> None:
    for name in OURS:
        variables = {
            variable for variable in SERVICES[name]["environment"] if variable.startswith(PREFIX)
        }
        assert variables
        assert variables <= names()


def test_every_variable_is_in_the_example() -> None:
    for variable in set(re.findall(r"\$\{([A-Z0-9_]+)", TEXT)) - {"S3_ACCESS_KEY"}:
        assert re.search(rf"^(# )?{variable}=", EXAMPLE, re.MULTILINE), variable


def test_comments_set_a_variable_before_its_use() -> None:
    comments = TEXT[: TEXT.index("\nname:")]
    assert comments.index(". ./compose.env") < comments.index('"Authorization: Bearer $API_TOKEN"')


def test_no_password_has_a_default() -> None:
    for variable in re.findall(r"\$\{(\w*(?:PASSWORD|SECRET_KEY|TOKEN))([^}]*)\}", TEXT):
        assert variable[1].startswith(":?"), variable


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_services_run_existing_commands_and_write_nowhere(name: str) -> None:
    service = SERVICES[name]
    assert service["command"][0] == name
    assert name in COMMANDS
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]


def test_model_server_is_restricted_and_has_no_settings() -> None:
    server = SERVICES["model-server"]
    assert server["image"] == SERVICES["api"]["image"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert server["environment"] == {}
    assert "ports" not in server


def test_proxy_has_no_settings_of_postgres() -> None:
    environment = SERVICES["proxy"]["environment"]
    assert not [name for name in environment if "POSTGRES" in name or "API_TOKEN" in name]


def test_proxy_forwards_to_the_model_server() -> None:
    (mounted,) = SERVICES["proxy"]["volumes"]
    file, target, how = mounted.split(":")
    assert SERVICES["proxy"]["environment"][f"{PREFIX}PROXY_CONFIG"] == target
    assert how == "ro"
    configuration = read_configuration_file(ROOT / file, protocols=PROTOCOLS)
    (upstream,) = configuration.upstreams
    assert (upstream.url, upstream.grpc) == ("http://model-server:8080", "model-server:8081")
    assert SERVICES["model-server"]["command"][:2] == ["8080", "8081"]


def test_smoke_sends_the_example_through_the_proxy() -> None:
    command = "".join(SERVICES["smoke"]["command"])
    picture = base64.b64encode((ROOT / "examples" / "digit.png").read_bytes()).decode()
    assert f'"data": ["{picture}"]' in command
    assert "--proxy=http://proxy:8090" in command


@pytest.mark.parametrize("name", SERVICES)
def test_dependencies_have_health_checks(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        if how["condition"] == "service_healthy":
            assert SERVICES[other]["healthcheck"]["test"]
        else:
            assert other == "migrate"


def test_data_is_in_volumes_and_ports_are_local() -> None:
    for name in ("postgres", "kafka", "s3"):
        (volume,) = SERVICES[name]["volumes"]
        assert volume.split(":")[0] in COMPOSE["volumes"]
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
