"""The gateway: the product accepts its configuration, and it has its own credentials."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_store.platform.settings import PREFIX
from inference_store.proxy.configuration import (
    Configuration,
    WrongConfiguration,
    read_configuration_file,
)
from inference_store.proxy.protocols import PROTOCOLS

from .matrix import MATRIX, SERVERS, UPSTREAMS
from .rendering import Object, Values, render_objects, select_kind, select_pods

pytestmark = pytest.mark.usefixtures("require_helm")
FULL = "store-inference-store"
OWN = MATRIX["a gateway with rights of its own"]
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
    return read_configuration_file(file, protocols=PROTOCOLS)


def test_is_not_rendered_by_default() -> None:
    for values in (SERVERS, MATRIX["trying out"]):
        assert not [
            document
            for document in render_objects(values)
            if "proxy" in document["metadata"]["name"]
        ]


@pytest.mark.parametrize("values", GATEWAYS.values(), ids=GATEWAYS)
def test_product_accepts_the_configuration(values: Values, tmp_path: Path) -> None:
    configuration = read_configuration(values, tmp_path)
    assert [upstream.name for upstream in configuration.upstreams] == [
        upstream["name"] for upstream in values["proxy"]["upstreams"]
    ]
    smoke_rules = configuration.rules(
        configuration.upstreams[0].name, "inference-store-smoke", None
    )
    assert smoke_rules.capture
    assert smoke_rules.sampling.share == 1


def test_rules_come_from_the_values(tmp_path: Path) -> None:
    rules = read_configuration(OWN, tmp_path).rules("triton", "yolo-11", None)
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


def test_accepts_an_existing_config_map() -> None:
    objects = render_objects(MATRIX["everything that may be left out"])
    rendered = select_kind(objects, "Deployment")["store-inferences-proxy"]
    volumes = rendered["spec"]["template"]["spec"]["volumes"]
    assert {"name": "configuration", "configMap": {"name": "my-proxy"}} in volumes
    assert "store-inferences-proxy-configuration" not in select_kind(objects, "ConfigMap")


@pytest.mark.parametrize("values", GATEWAYS.values(), ids=GATEWAYS)
def test_it_never_learns_where_postgres_is_nor_the_apis_key(values: Values) -> None:
    environment = read_settings(values)
    assert not [
        name for name in environment if name.startswith(("POSTGRES", "API", "OIDC", "AUTH"))
    ]
    (container,) = render_pod_template(values)["spec"]["containers"]
    text = json.dumps(render_pod_template(values)).upper()
    for word in ("POSTGRES", "API_TOKEN", "API-TOKEN", "DSN"):
        assert word not in text, word
    assert container["envFrom"] == [{"configMapRef": {"name": f"{FULL}-proxy"}}]


def test_common_settings_reach_it_without_those_of_others() -> None:
    for_all = {"PROXY_BODY_BYTES": 1048576, "API_MAX_BODY_BYTES": 1, "S3_TIMEOUT_SECONDS": 3}
    values = MATRIX["trying out with a proxy"] | {"settings": for_all, "logs": {"level": "debug"}}
    environment = read_settings(values)
    assert (environment["PROXY_BODY_BYTES"], environment["S3_TIMEOUT_SECONDS"]) == ("1048576", "3")
    assert environment["LOG_LEVEL"] == "debug"
    assert "API_MAX_BODY_BYTES" not in environment


def test_it_also_sends_traces() -> None:
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    values = MATRIX["trying out with a proxy"] | {"traces": traces}
    assert read_settings(values)["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"


def list_secrets(values: Values) -> dict[str, tuple[str, str]]:
    """Return the Secret and its key of each variable of its environment."""
    (container,) = render_pod_template(values)["spec"]["containers"]
    places = {
        variable["name"].removeprefix(PREFIX): variable["valueFrom"]["secretKeyRef"]
        for variable in container["env"]
        if "valueFrom" in variable
    }
    return {name: (reference["name"], reference["key"]) for name, reference in places.items()}


def test_has_its_own_keys_and_user() -> None:
    assert list_secrets(OWN) == {
        "KAFKA_SASL_PASSWORD": ("proxy-kafka", "password"),
        "S3_ACCESS_KEY": ("put-only-s3", "access-key"),
        "S3_SECRET_KEY": ("put-only-s3", "secret-key"),
        "PROXY_REDACTION_KEY": ("redaction", "redaction-key"),
        "PROXY_REGISTRY_KEY": ("registry", "registry-key"),
    }
    assert read_settings(OWN)["KAFKA_SASL_USERNAME"] == "proxy"
    assert read_settings(OWN, FULL)["KAFKA_SASL_USERNAME"] == "us"
    account = select_kind(render_objects(OWN), "ServiceAccount")[f"{FULL}-proxy"]
    assert account["metadata"]["annotations"] == {"role": "may-put"}
    assert render_pod_template(OWN)["spec"]["serviceAccountName"] == f"{FULL}-proxy"
    mounted = {volume["name"]: volume for volume in render_pod_template(OWN)["spec"]["volumes"]}
    assert mounted["kafka-certificate"]["secret"] == {"secretName": "proxy-certificate"}
    assert mounted["upstream-triton-ca"]["secret"] == {"secretName": "triton.ca"}


def test_uses_common_keys_without_its_own() -> None:
    shared = OWN | {"proxy": {"enabled": True, "upstreams": UPSTREAMS}}
    assert list_secrets(shared) == {
        "KAFKA_SASL_PASSWORD": ("kafka", "password"),
        "S3_ACCESS_KEY": ("store-s3", "access-key"),
        "S3_SECRET_KEY": ("store-s3", "secret-key"),
    }
    assert read_settings(shared)["KAFKA_SASL_USERNAME"] == "us"


def test_uses_its_own_oauth_client() -> None:
    tokens = MATRIX["tokens instead of passwords"]
    kafka = {"username": "proxy", "existingSecret": "proxy-kafka"}
    values = tokens | {"proxy": {"enabled": True, "upstreams": UPSTREAMS, "kafka": kafka}}
    assert read_settings(values)["KAFKA_OAUTH_CLIENT_ID"] == "proxy"
    assert list_secrets(values)["KAFKA_OAUTH_CLIENT_SECRET"] == ("proxy-kafka", "password")


@pytest.mark.parametrize(
    ("mode", "set_to"), [("overflow", "overflow"), ("all", "all"), ("off", None), (False, None)]
)
def test_spool_is_bounded_and_optional(mode: str | bool, set_to: str | None) -> None:
    proxy = {"enabled": True, "upstreams": UPSTREAMS, "spool": {"mode": mode, "bytes": 2097152}}
    values = SERVERS | {"proxy": proxy}
    environment = read_settings(values)
    volumes = {volume["name"]: volume for volume in render_pod_template(values)["spec"]["volumes"]}
    assert environment.get("PROXY_SPOOL") == set_to
    assert ("spool" in volumes) == (set_to is not None)
    if set_to is not None:
        (container,) = render_pod_template(values)["spec"]["containers"]
        mount = {"name": "spool", "mountPath": environment["PROXY_SPOOL_DIRECTORY"]}
        assert mount in container["volumeMounts"]
        # Over this limit the pod is evicted, with all waiting captures.
        assert int(volumes["spool"]["emptyDir"]["sizeLimit"]) > 2 * int(
            environment["PROXY_SPOOL_BYTES"]
        )


def test_spool_can_use_an_existing_claim() -> None:
    volumes = render_pod_template(OWN)["spec"]["volumes"]
    assert {"name": "spool", "persistentVolumeClaim": {"claimName": "spool"}} in volumes
    assert read_settings(OWN)["PROXY_SPOOL_FSYNC"] == "on"


def test_grace_period_covers_calls_and_captures() -> None:
    pod = render_pod_template(MATRIX["trying out with a proxy"])["spec"]
    grace = float(read_settings(MATRIX["trying out with a proxy"])["PROXY_GRACE_SECONDS"])
    before = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert before + grace < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(
    ("secret", "protocols"), [("", ["http", "kubernetes.io/h2c"]), ("tls", 2 * ["https"])]
)
def test_service_has_both_ports_with_their_protocols(secret: str, protocols: list[str]) -> None:
    proxy = {"enabled": True, "upstreams": UPSTREAMS, "tlsSecret": secret}
    objects = render_objects(SERVERS | {"proxy": proxy})
    service = select_kind(objects, "Service")[f"{FULL}-proxy"]
    ports = service["spec"]["ports"]
    assert [(port["name"], port["port"]) for port in ports] == [("http", 8090), ("grpc", 8091)]
    assert [port["appProtocol"] for port in ports] == protocols
    (container,) = select_kind(objects, "Deployment")[f"{FULL}-proxy"]["spec"]["template"]["spec"][
        "containers"
    ]
    port_numbers = {port["name"]: port["containerPort"] for port in container["ports"]}
    environment = read_settings(SERVERS | {"proxy": proxy})
    assert port_numbers["http"] == int(environment["PROXY_PORT"])
    assert port_numbers["grpc"] == int(environment["PROXY_GRPC_PORT"])
    assert port_numbers["admin"] == int(environment["PROXY_ADMIN_PORT"])
    assert ("PROXY_TLS_KEY_FILE" in environment) == bool(secret)


def test_scales_by_cpu() -> None:
    objects = render_objects(OWN)
    scaler = select_kind(objects, "HorizontalPodAutoscaler")[f"{FULL}-proxy"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == f"{FULL}-proxy"
    assert scaler["metrics"][0]["resource"]["name"] == "cpu"
    assert "replicas" not in select_kind(objects, "Deployment")[f"{FULL}-proxy"]["spec"]


def test_its_changes_only_replace_its_own_pods() -> None:
    def checksums(values: Values) -> dict[str, str]:
        deployments = select_kind(render_objects(values), "Deployment")
        return {
            name: deployment_spec["spec"]["template"]["metadata"]["annotations"][
                "checksum/settings"
            ]
            for name, deployment_spec in deployments.items()
        }

    before = checksums(MATRIX["trying out with a proxy"])
    proxy = MATRIX["trying out with a proxy"]["proxy"] | {
        "models": [{"model": "a", "capture": False}]
    }
    after = checksums(MATRIX["trying out with a proxy"] | {"proxy": proxy})
    assert {name for name in before if before[name] != after[name]} == {f"{FULL}-proxy"}


def list_smoke_arguments(values: Values) -> list[str]:
    """Return the arguments that `helm test` runs."""
    spec = select_pods(render_objects(values))[f"Pod/{FULL}-smoke"]
    return list(spec["spec"]["containers"][0]["args"])


def test_helm_test_sends_a_call_through_the_proxy() -> None:
    assert not [argument for argument in list_smoke_arguments(SERVERS) if "proxy" in argument]
    assert list_smoke_arguments(MATRIX["trying out with a proxy"])[2:] == [
        f"--proxy=http://{FULL}-proxy:8090",
        "--proxy-model=inference-store-smoke",
    ]
    assert list_smoke_arguments(OWN)[2:] == [
        f"--proxy=https://{FULL}-proxy:8090",
        "--proxy-ca=/etc/inference-store/proxy-tls/tls.crt",
        "--proxy-path=/v2/models/yolo/infer",
        '--proxy-request={"inputs":[]}',
        "--proxy-model=yolo",
    ]
    only_grpc = {"enabled": True, "upstreams": [{"name": "a", "grpc": "a:1"}]}
    assert not [
        argument
        for argument in list_smoke_arguments(SERVERS | {"proxy": only_grpc})
        if "proxy" in argument
    ]


def test_configuration_is_plain_yaml() -> None:
    objects = select_kind(render_objects(OWN), "ConfigMap")
    text = objects[f"{FULL}-proxy-configuration"]["data"]["proxy.yaml"]
    assert yaml.safe_load(text)["upstreams"] == UPSTREAMS
