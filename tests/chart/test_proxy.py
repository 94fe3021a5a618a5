"""The gateway: what it is told is what the product takes, and its rights are its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_store.platform.settings import PREFIX
from inference_store.proxy.configuration import Configuration, WrongConfiguration, configuration_of
from inference_store.proxy.protocols import PROTOCOLS

from .matrix import MATRIX, SERVERS, UPSTREAMS
from .rendering import Object, Values, of_kind, pods, template

pytestmark = pytest.mark.usefixtures("helm_is_here")
FULL = "store-inference-store"
OWN = MATRIX["a gateway with rights of its own"]
GATEWAYS = {name: values for name, values in MATRIX.items() if "upstreams" in str(values)}


def deployment(values: Values) -> Object:
    """The pod's template of the proxy."""
    return dict(of_kind(template(values), "Deployment")[f"{FULL}-proxy"]["spec"]["template"])


def settings(values: Values, name: str = f"{FULL}-proxy") -> dict[str, str]:
    """What its ConfigMap has, without the prefix."""
    data = of_kind(template(values), "ConfigMap")[name]["data"]
    return {name.removeprefix(PREFIX): value for name, value in data.items()}


def read(values: Values, folder: Path, name: str = f"{FULL}-proxy-configuration") -> Configuration:
    """Its configuration's file, read by the product itself. Raises WrongConfiguration."""
    file = folder / "proxy.yaml"
    file.write_text(of_kind(template(values), "ConfigMap")[name]["data"]["proxy.yaml"])
    return configuration_of(file, protocols=PROTOCOLS)


def test_without_a_word_nothing_of_it_is_there() -> None:
    for values in (SERVERS, MATRIX["trying out"]):
        assert not [one for one in template(values) if "proxy" in one["metadata"]["name"]]


@pytest.mark.parametrize("values", GATEWAYS.values(), ids=GATEWAYS)
def test_the_product_takes_the_configuration(values: Values, tmp_path: Path) -> None:
    found = read(values, tmp_path)
    assert [each.name for each in found.upstreams] == [
        each["name"] for each in values["proxy"]["upstreams"]
    ]
    smoke = found.rules(found.upstreams[0].name, "inference-store-smoke", None)
    assert smoke.capture
    assert smoke.sampling.share == 1


def test_its_rules_are_those_of_the_values(tmp_path: Path) -> None:
    rules = read(OWN, tmp_path).rules("triton", "yolo-11", None)
    assert rules.task_type == "object_detection"
    assert (rules.sampling.share, rules.sampling.always_errors) == (0.25, True)
    assert [(each.what, each.name, each.how) for each in rules.redactions] == [
        ("metadata", "user", "hash")
    ]


def test_a_mistake_in_the_values_is_named_by_the_product(tmp_path: Path) -> None:
    upstream: dict[str, Any] = {**UPSTREAMS[0], "read_secnds": 3}
    with pytest.raises(WrongConfiguration, match="the nearest are read_seconds"):
        read(SERVERS | {"proxy": {"enabled": True, "upstreams": [upstream]}}, tmp_path)


def test_it_takes_a_file_of_ones_own() -> None:
    objects = template(MATRIX["everything that may be left out"])
    found = of_kind(objects, "Deployment")["store-inferences-proxy"]
    volumes = found["spec"]["template"]["spec"]["volumes"]
    assert {"name": "configuration", "configMap": {"name": "my-proxy"}} in volumes
    assert "store-inferences-proxy-configuration" not in of_kind(objects, "ConfigMap")


@pytest.mark.parametrize("values", GATEWAYS.values(), ids=GATEWAYS)
def test_it_never_learns_where_postgres_is_nor_the_apis_key(values: Values) -> None:
    told = settings(values)
    assert not [name for name in told if name.startswith(("POSTGRES", "API", "OIDC", "AUTH"))]
    (container,) = deployment(values)["spec"]["containers"]
    text = json.dumps(deployment(values)).upper()
    for word in ("POSTGRES", "API_TOKEN", "API-TOKEN", "DSN"):
        assert word not in text, word
    assert container["envFrom"] == [{"configMapRef": {"name": f"{FULL}-proxy"}}]


def test_settings_of_everybody_reach_it_without_those_of_others() -> None:
    given = {"PROXY_BODY_BYTES": 1048576, "API_MAX_BODY_BYTES": 1, "S3_TIMEOUT_SECONDS": 3}
    values = MATRIX["trying out with a proxy"] | {"settings": given, "logs": {"level": "debug"}}
    told = settings(values)
    assert (told["PROXY_BODY_BYTES"], told["S3_TIMEOUT_SECONDS"]) == ("1048576", "3")
    assert told["LOG_LEVEL"] == "debug"
    assert "API_MAX_BODY_BYTES" not in told


def test_traces_are_sent_from_it_too() -> None:
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    values = MATRIX["trying out with a proxy"] | {"traces": traces}
    assert settings(values)["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"


def secrets(values: Values) -> dict[str, tuple[str, str]]:
    """Of its environment: which Secret, which key."""
    (container,) = deployment(values)["spec"]["containers"]
    places = {
        one["name"].removeprefix(PREFIX): one["valueFrom"]["secretKeyRef"]
        for one in container["env"]
        if "valueFrom" in one
    }
    return {name: (place["name"], place["key"]) for name, place in places.items()}


def test_its_keys_and_its_user_are_its_own() -> None:
    assert secrets(OWN) == {
        "KAFKA_SASL_PASSWORD": ("proxy-kafka", "password"),
        "S3_ACCESS_KEY": ("put-only-s3", "access-key"),
        "S3_SECRET_KEY": ("put-only-s3", "secret-key"),
        "PROXY_REDACTION_KEY": ("redaction", "redaction-key"),
        "PROXY_REGISTRY_KEY": ("registry", "registry-key"),
    }
    assert settings(OWN)["KAFKA_SASL_USERNAME"] == "proxy"
    assert settings(OWN, FULL)["KAFKA_SASL_USERNAME"] == "us"
    account = of_kind(template(OWN), "ServiceAccount")[f"{FULL}-proxy"]
    assert account["metadata"]["annotations"] == {"role": "may-put"}
    assert deployment(OWN)["spec"]["serviceAccountName"] == f"{FULL}-proxy"
    mounted = {one["name"]: one for one in deployment(OWN)["spec"]["volumes"]}
    assert mounted["kafka-certificate"]["secret"] == {"secretName": "proxy-certificate"}
    assert mounted["upstream-triton-ca"]["secret"] == {"secretName": "triton.ca"}


def test_without_keys_of_its_own_it_has_those_of_all() -> None:
    shared = OWN | {"proxy": {"enabled": True, "upstreams": UPSTREAMS}}
    assert secrets(shared) == {
        "KAFKA_SASL_PASSWORD": ("kafka", "password"),
        "S3_ACCESS_KEY": ("store-s3", "access-key"),
        "S3_SECRET_KEY": ("store-s3", "secret-key"),
    }
    assert settings(shared)["KAFKA_SASL_USERNAME"] == "us"


def test_a_client_of_its_own_asks_for_its_tokens() -> None:
    tokens = MATRIX["tokens instead of passwords"]
    kafka = {"username": "proxy", "existingSecret": "proxy-kafka"}
    values = tokens | {"proxy": {"enabled": True, "upstreams": UPSTREAMS, "kafka": kafka}}
    assert settings(values)["KAFKA_OAUTH_CLIENT_ID"] == "proxy"
    assert secrets(values)["KAFKA_OAUTH_CLIENT_SECRET"] == ("proxy-kafka", "password")


@pytest.mark.parametrize(
    ("mode", "set_to"), [("overflow", "overflow"), ("all", "all"), ("off", None), (False, None)]
)
def test_the_spool_is_bounded_and_can_be_left_out(mode: str | bool, set_to: str | None) -> None:
    proxy = {"enabled": True, "upstreams": UPSTREAMS, "spool": {"mode": mode, "bytes": 2097152}}
    values = SERVERS | {"proxy": proxy}
    told = settings(values)
    volumes = {one["name"]: one for one in deployment(values)["spec"]["volumes"]}
    assert told.get("PROXY_SPOOL") == set_to
    assert ("spool" in volumes) == (set_to is not None)
    if set_to is not None:
        (container,) = deployment(values)["spec"]["containers"]
        mount = {"name": "spool", "mountPath": told["PROXY_SPOOL_DIRECTORY"]}
        assert mount in container["volumeMounts"]
        # Over its limit the pod is evicted, with all that waits in it.
        assert int(volumes["spool"]["emptyDir"]["sizeLimit"]) > 2 * int(told["PROXY_SPOOL_BYTES"])


def test_a_spool_can_outlive_its_pods() -> None:
    volumes = deployment(OWN)["spec"]["volumes"]
    assert {"name": "spool", "persistentVolumeClaim": {"claimName": "spool"}} in volumes
    assert settings(OWN)["PROXY_SPOOL_FSYNC"] == "on"


def test_calls_and_captures_end_before_the_pod_is_killed() -> None:
    pod = deployment(MATRIX["trying out with a proxy"])["spec"]
    grace = float(settings(MATRIX["trying out with a proxy"])["PROXY_GRACE_SECONDS"])
    before = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert before + grace < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(
    ("secret", "said"), [("", ["http", "kubernetes.io/h2c"]), ("tls", 2 * ["https"])]
)
def test_its_service_has_both_ports_and_says_what_they_speak(secret: str, said: list[str]) -> None:
    proxy = {"enabled": True, "upstreams": UPSTREAMS, "tlsSecret": secret}
    objects = template(SERVERS | {"proxy": proxy})
    service = of_kind(objects, "Service")[f"{FULL}-proxy"]
    ports = service["spec"]["ports"]
    assert [(one["name"], one["port"]) for one in ports] == [("http", 8090), ("grpc", 8091)]
    assert [one["appProtocol"] for one in ports] == said
    (container,) = of_kind(objects, "Deployment")[f"{FULL}-proxy"]["spec"]["template"]["spec"][
        "containers"
    ]
    named = {one["name"]: one["containerPort"] for one in container["ports"]}
    told = settings(SERVERS | {"proxy": proxy})
    assert named["http"] == int(told["PROXY_PORT"])
    assert named["grpc"] == int(told["PROXY_GRPC_PORT"])
    assert named["admin"] == int(told["PROXY_ADMIN_PORT"])
    assert ("PROXY_TLS_KEY_FILE" in told) == bool(secret)


def test_it_scales_by_cpu() -> None:
    objects = template(OWN)
    scaler = of_kind(objects, "HorizontalPodAutoscaler")[f"{FULL}-proxy"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == f"{FULL}-proxy"
    assert scaler["metrics"][0]["resource"]["name"] == "cpu"
    assert "replicas" not in of_kind(objects, "Deployment")[f"{FULL}-proxy"]["spec"]


def test_what_changes_it_makes_new_pods_of_it_alone() -> None:
    def checksums(values: Values) -> dict[str, str]:
        found = of_kind(template(values), "Deployment")
        return {
            name: one["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
            for name, one in found.items()
        }

    before = checksums(MATRIX["trying out with a proxy"])
    proxy = MATRIX["trying out with a proxy"]["proxy"] | {
        "models": [{"model": "a", "capture": False}]
    }
    after = checksums(MATRIX["trying out with a proxy"] | {"proxy": proxy})
    assert {name for name in before if before[name] != after[name]} == {f"{FULL}-proxy"}


def smoke(values: Values) -> list[str]:
    """What `helm test` runs."""
    found = pods(template(values))[f"Pod/{FULL}-smoke"]
    return list(found["spec"]["containers"][0]["args"])


def test_helm_test_sends_a_call_through_it() -> None:
    assert not [one for one in smoke(SERVERS) if "proxy" in one]
    assert smoke(MATRIX["trying out with a proxy"])[2:] == [
        f"--proxy=http://{FULL}-proxy:8090",
        "--proxy-model=inference-store-smoke",
    ]
    assert smoke(OWN)[2:] == [
        f"--proxy=https://{FULL}-proxy:8090",
        "--proxy-ca=/etc/inference-store/proxy-tls/tls.crt",
        "--proxy-path=/v2/models/yolo/infer",
        '--proxy-request={"inputs":[]}',
        "--proxy-model=yolo",
    ]
    only_grpc = {"enabled": True, "upstreams": [{"name": "a", "grpc": "a:1"}]}
    assert not [one for one in smoke(SERVERS | {"proxy": only_grpc}) if "proxy" in one]


def test_the_configuration_is_plain_yaml() -> None:
    objects = of_kind(template(OWN), "ConfigMap")
    text = objects[f"{FULL}-proxy-configuration"]["data"]["proxy.yaml"]
    assert yaml.safe_load(text)["upstreams"] == UPSTREAMS
