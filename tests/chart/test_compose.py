"""The contents of compose.yaml: its settings exist, and its images can be replaced."""

import base64
import json
import os
import re
import subprocess
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from minio.error import S3Error

from inference_store.cli.main import COMMANDS
from inference_store.erasure.log import read_keys
from inference_store.platform.settings import PREFIX, names
from inference_store.proxy.configuration import read_configuration_file
from tests.servers.fixtures import unique
from tests.servers.minio import S3

from .rendering import CHART, ROOT

TEXT = (ROOT / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXAMPLE = (ROOT / "compose.env.example").read_text()
OURS = {"migrate", "ingester", "api", "retention", "proxy", "doctor"}


def test_every_image_can_be_replaced_and_is_that_of_the_chart() -> None:
    for service in SERVICES.values():
        match = re.fullmatch(r"\$\{([A-Z0-9_]+_IMAGE):-(.+:.+)\}", service["image"])
        assert match, service["image"]
        variable, default = match.groups()
        assert f"{variable}={default}" in EXAMPLE
        assert not default.endswith(":latest")
    dev = yaml.safe_load((CHART / "values.yaml").read_text())["dev"]
    for name in ("postgres", "kafka", "s3"):
        assert dev[name]["image"] in SERVICES[name]["image"]


def test_our_services_run_existing_commands_with_existing_settings_and_write_nowhere() -> None:
    for name in OURS:
        assert SERVICES[name]["command"][0] == name
        assert name in COMMANDS
        variables = {
            variable for variable in SERVICES[name]["environment"] if variable.startswith(PREFIX)
        }
        assert variables
        # a secret may come as a file
        assert {name for name in variables if name.removesuffix("_FILE") not in names()} <= names()
    for name in OURS | {"model-server"}:
        assert SERVICES[name]["read_only"] is True, name
        assert SERVICES[name]["cap_drop"] == ["ALL"], name


def test_every_variable_is_in_the_example_and_no_password_has_a_default() -> None:
    for variable in set(re.findall(r"\$\{([A-Z0-9_]+)", TEXT)):
        assert re.search(rf"^(# )?{variable}=", EXAMPLE, re.MULTILINE), variable
    for variable in re.findall(r"\$\{(\w*(?:PASSWORD|SECRET_KEY|TOKEN|PROXY_KEY))([^}]*)\}", TEXT):
        assert variable[1].startswith(":?"), variable


def test_proxy_knows_the_model_server_and_registrations_but_no_postgres() -> None:
    environment, migration = (SERVICES[name]["environment"] for name in ("proxy", "migrate"))
    assert not [name for name in environment if "POSTGRES" in name or "API_TOKEN" in name]
    assert environment[f"{PREFIX}PROXY_REGISTRY_URL"] == "http://api:8080"
    key = f"{PREFIX}PROXY_REGISTRY_KEY"
    assert environment[key] == migration[key]  # the migration makes it
    (mounted,) = SERVICES["proxy"]["volumes"]
    file, target, how = mounted.split(":")
    assert environment[f"{PREFIX}PROXY_CONFIG"] == target
    assert how == "ro"
    configuration = read_configuration_file(ROOT / file)
    (upstream,) = configuration.upstreams
    assert (upstream.url, upstream.grpc) == ("http://model-server:8080", "model-server:8081")
    assert SERVICES["model-server"]["command"][:2] == ["8080", "8081"]
    # the doctor sends the example through it
    command = "".join(SERVICES["doctor"]["command"])
    picture = base64.b64encode((ROOT / "examples" / "digit.png").read_bytes()).decode()
    assert f'"data": ["{picture}"]' in command
    assert "--proxy=http://proxy:8090/v2/" in command


def test_dependencies_have_health_checks_and_data_is_in_volumes() -> None:
    for service in SERVICES.values():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert SERVICES[other]["healthcheck"]["test"]
            else:
                assert other in {"migrate", "first-start"}
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    for name in ("postgres", "kafka", "s3"):
        (volume,) = SERVICES[name]["volumes"]
        assert volume.split(":")[0] in COMPOSE["volumes"]


def test_the_services_have_the_documented_rights() -> None:
    page = (ROOT / "docs" / "how-to" / "retention.md").read_text()
    sections = re.findall(r"^### Policy of the (\w+).*?^```json\n(.*?)^```$", page, re.M | re.S)
    rights = json.loads((ROOT / "compose.s3-rights.json").read_text())
    assert rights == {service: json.loads(policy) for service, policy in sections}


@pytest.mark.real_minio
def test_first_start_makes_bucket_key_and_users(minio_server: S3, tmp_path: Path) -> None:
    (script,) = SERVICES["first-start"]["command"]
    server, bucket = minio_server, unique()
    given = {"ENDPOINT": server.endpoint, "BUCKET": bucket}
    given |= {"ACCESS_KEY": server.access_key, "SECRET_KEY": server.secret_key}
    told = os.environ | {f"{PREFIX}S3_{name}": value for name, value in given.items()}
    told["PATH"] = f"{ROOT}/.venv/bin:{told['PATH']}"
    files = []
    rights = ROOT / "compose.s3-rights.json"
    secrets = dict.fromkeys(json.loads(rights.read_text()), "a-users-secret")
    told |= {f"{user.upper()}_S3_SECRET_KEY": secret for user, secret in secrets.items()}
    script = script.replace("/etc/inference-store/s3-rights.json", str(rights))
    for _ in range(2):
        command = ["sh", "-euc", script.replace("/keys", str(tmp_path))]
        subprocess.run(command, env=told, check=True, timeout=600)
        files.append((tmp_path / "certificate-key.pem").read_text())
    assert len(read_keys(files[0])) == 1
    assert files[0] == files[1]
    assert server.client().get_bucket_versioning(bucket).status == "Enabled"
    assert server.client().get_object_lock_config(bucket).mode is None  # one by one
    users = {user: S3(server.endpoint, user, secrets[user]).client() for user in secrets}
    for user, client in users.items():
        environment = SERVICES[user]["environment"]
        assert environment[f"{PREFIX}S3_ACCESS_KEY"] == user
        assert f"${{{user.upper()}_S3_SECRET_KEY:?" in environment[f"{PREFIX}S3_SECRET_KEY"]
        with pytest.raises(S3Error, match="Access Denied"):
            client.put_object(bucket, "elsewhere", BytesIO(), 0)
    users["proxy"].put_object(bucket, "captures/a", BytesIO(), 0)
    assert list(users["ingester"].list_objects(bucket, "captures/"))
    for name in ("retention", "doctor"):
        assert SERVICES[name]["environment"][f"{PREFIX}CERTIFICATE_KEY_FILE"] in script
        assert SERVICES[name]["volumes"] == ["keys:/keys:ro"]


# `make sbom` lists every package of the lock with its hashes.


def test_lists_the_packages_of_the_lock(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "sbom", f"SBOM={tmp_path / 'sbom.json'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sbom = json.loads((tmp_path / "sbom.json").read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    assert sbom["metadata"]["component"]["name"] == "inference-store"
    parts = {f"{component['name']}=={component['version']}" for component in sbom["components"]}
    lock = (ROOT / "requirements.lock").read_text()
    assert parts == set(re.findall(r"^[\w.-]+==[^\s;]+", lock, re.MULTILINE))
    assert all(component["externalReferences"][0]["hashes"] for component in sbom["components"])
