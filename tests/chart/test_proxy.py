"""The gateway: the product accepts its configuration, and it has its own credentials."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from inference_store.access.credentials import id_of
from inference_store.platform.settings import PREFIX
from inference_store.proxy.configuration import (
    Configuration,
    WrongConfiguration,
    read_configuration_file,
)

from .matrix import MATRIX, SERVERS, UPSTREAMS
from .rendering import FULL, Object, Values, render_objects, select_kind, select_pods

pytestmark = pytest.mark.usefixtures("require_helm")
OWN = MATRIX["a gateway with rights of its own"]
TRIED = MATRIX["trying out with a proxy"]
GATEWAYS = {name: values for name, values in MATRIX.items() if "upstreams" in str(values)}


def render_pod_template(values: Values) -> Object:
    """Render the pod template of the proxy."""
    return dict(
        select_kind(render_objects(values), "Deployment")[f"{FULL}-proxy"]["spec"]["template"]
    )


def read_settings(values: Values, name: str = f"{FULL}-proxy") -> dict[str, str]:
    """Return the settings of its ConfigMap, without the prefix."""
    data = select_kind(render_objects(values), "ConfigMap")[name]["data"]
    return {name.removeprefix(PREFIX): value for name, value in data.items()}


def read_configuration(
    values: Values, folder: Path, name: str = f"{FULL}-proxy-configuration"
) -> Configuration:
    """Read its configuration file with the product. Raises WrongConfiguration."""
    file = folder / "proxy.yaml"
    file.write_text(select_kind(render_objects(values), "ConfigMap")[name]["data"]["proxy.yaml"])
    return read_configuration_file(file)


def test_product_accepts_the_configuration(tmp_path: Path) -> None:
    for row, values in GATEWAYS.items():
        configuration = read_configuration(values, tmp_path)
        names = [upstream["name"] for upstream in values["proxy"]["upstreams"]]
        assert [upstream.name for upstream in configuration.upstreams] == names, row
        tested = configuration.rules(names[0], "inference-store-doctor", None)
        assert tested.capture, row
        assert tested.sampling.share == 1, row
    configuration = read_configuration(OWN, tmp_path)
    rules = configuration.rules("triton", "yolo-11", None)
    assert rules.task_type == "object_detection"
    assert (rules.sampling.share, rules.sampling.always_errors) == (0.25, True)
    assert [(redaction.what, redaction.name, redaction.how) for redaction in rules.redactions] == [
        ("metadata", "user", "hash")
    ]


def test_product_names_an_error_in_the_values(tmp_path: Path) -> None:
    upstream: dict[str, Any] = {**UPSTREAMS[0], "read_secnds": 3}
    with pytest.raises(WrongConfiguration, match="the nearest are read_seconds"):
        read_configuration(
            SERVERS | {"proxy": {"enabled": True, "upstreams": [upstream]}}, tmp_path
        )


def test_it_never_learns_where_postgres_is_nor_the_apis_key() -> None:
    for row, values in GATEWAYS.items():
        others = ("POSTGRES", "API", "OIDC", "AUTH")
        assert not [name for name in read_settings(values) if name.startswith(others)], row
        (container,) = render_pod_template(values)["spec"]["containers"]
        text = json.dumps(render_pod_template(values)).upper()
        for word in ("POSTGRES", "API_TOKEN", "API-TOKEN", "DSN"):
            assert word not in text, (row, word)
        assert container["envFrom"] == [{"configMapRef": {"name": f"{FULL}-proxy"}}], row


def test_reads_registrations_by_a_key_that_the_migration_lets_read() -> None:
    for changes, secret in (
        ({}, f"{FULL}-registry-key"),
        ({"registry": {"existingSecret": "mine"}}, "mine"),
        ({"registry": {"enabled": False}}, None),
    ):
        values = SERVERS | {"proxy": {"enabled": True, "upstreams": UPSTREAMS, **changes}}
        made = select_kind(render_objects(values), "Secret").get(f"{FULL}-registry-key")
        text = json.dumps(render_pod_template(values))
        own = "http://store-inference-store-api:8080" if secret else None
        assert read_settings(values).get("PROXY_REGISTRY_URL") == own
        assert (f'"{secret}"' in text) is (secret is not None)
        assert (made is not None) is (secret == f"{FULL}-registry-key")
        jobs = json.dumps(select_kind(render_objects(values), "Job"))
        assert ("PROXY_REGISTRY_KEY" in jobs) is (made is not None)
        if made is not None:
            assert id_of(base64.b64decode(made["data"]["registry-key"]).decode()) == "registryread"


def test_common_settings_reach_it_without_those_of_others() -> None:
    values = TRIED | {
        "settings": {"PROXY_BODY_BYTES": 1048576, "POSTGRES_POOL_SIZE": 9, "S3_TIMEOUT_SECONDS": 3},
        "logs": {"level": "debug"},
        "traces": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
    }
    environment = read_settings(values)
    assert (environment["PROXY_BODY_BYTES"], environment["S3_TIMEOUT_SECONDS"]) == ("1048576", "3")
    assert environment["LOG_LEVEL"] == "debug"
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert "QUERY_TIMEOUT_SECONDS" not in environment


def test_spool_is_bounded_and_optional() -> None:
    for mode in ("overflow", "off", False):
        spool = {"mode": mode, "bytes": 2097152}
        values = SERVERS | {"proxy": {"enabled": True, "upstreams": UPSTREAMS, "spool": spool}}
        environment, pod = read_settings(values), render_pod_template(values)["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        is_on = mode == "overflow"
        assert environment.get("PROXY_SPOOL") == ("overflow" if is_on else None), mode
        assert ("spool" in volumes) == is_on, mode
        if is_on:
            mount = {"name": "spool", "mountPath": environment["PROXY_SPOOL_DIRECTORY"]}
            assert mount in pod["containers"][0]["volumeMounts"]
            # Over this limit the pod is evicted, with all waiting captures.
            limit = int(volumes["spool"]["emptyDir"]["sizeLimit"])
            assert limit > 2 * int(environment["PROXY_SPOOL_BYTES"])


def test_grace_period_covers_calls_and_captures() -> None:
    pod = render_pod_template(TRIED)["spec"]
    grace = float(read_settings(TRIED)["PROXY_GRACE_SECONDS"])
    before = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert before + grace < pod["terminationGracePeriodSeconds"]


def test_service_has_both_ports_with_their_protocols() -> None:
    for values, protocols in ((TRIED, ["http", "kubernetes.io/h2c"]), (OWN, 2 * ["https"])):
        ports = select_kind(render_objects(values), "Service")[f"{FULL}-proxy"]["spec"]["ports"]
        assert [(port["name"], port["port"]) for port in ports] == [("http", 8090), ("grpc", 8091)]
        assert [port["appProtocol"] for port in ports] == protocols
        (container,) = render_pod_template(values)["spec"]["containers"]
        port_numbers = {port["name"]: port["containerPort"] for port in container["ports"]}
        environment = read_settings(values)
        assert port_numbers["http"] == int(environment["PROXY_PORT"])
        assert port_numbers["grpc"] == int(environment["PROXY_GRPC_PORT"])
        assert port_numbers["admin"] == int(environment["PROXY_ADMIN_PORT"])
        assert ("PROXY_TLS_KEY_FILE" in environment) == (values is OWN)


def test_its_changes_only_replace_its_own_pods() -> None:
    def checksums(values: Values) -> dict[str, str]:
        deployments = select_kind(render_objects(values), "Deployment")
        return {
            name: deployment["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
            for name, deployment in deployments.items()
        }

    models = [{"model": "a", "capture": False}]
    before = checksums(TRIED)
    after = checksums(TRIED | {"proxy": TRIED["proxy"] | {"models": models}})
    assert {name for name in before if before[name] != after[name]} == {f"{FULL}-proxy"}


def list_test_arguments(values: Values) -> list[str]:
    """Return the arguments that `helm test` runs."""
    spec = select_pods(render_objects(values))[f"Pod/{FULL}-doctor"]
    return list(spec["spec"]["containers"][0]["args"])


def test_helm_test_sends_a_call_through_the_proxy() -> None:
    assert not [argument for argument in list_test_arguments(SERVERS) if "proxy" in argument]
    assert list_test_arguments(TRIED)[1:] == [
        f"--proxy=http://{FULL}-proxy:8090",
        "--proxy-model=inference-store-doctor",
    ]
    assert list_test_arguments(OWN)[1:] == [
        f"--proxy=https://{FULL}-proxy:8090/v2/models/yolo/infer",
        "--ca=/etc/inference-store/proxy-tls/tls.crt",
        '--proxy-request={"inputs":[]}',
        "--proxy-model=yolo",
    ]
    only_grpc = SERVERS | {"proxy": {"enabled": True, "upstreams": [{"name": "a", "grpc": "a:1"}]}}
    assert not [argument for argument in list_test_arguments(only_grpc) if "proxy" in argument]
