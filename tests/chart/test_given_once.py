"""Values that reach several objects: what one gives, each of them has."""

import json

import pytest

from .matrix import SERVERS
from .rendering import Values, of_kind, pods, template

pytestmark = pytest.mark.usefixtures("helm_is_here")
OURS = ("api", "ingester", "retention", "migrate", "smoke", "doctor")


@pytest.mark.parametrize(
    ("given", "name"), [("", "store-inference-store"), ("admin.example.com", "admin.example.com")]
)
def test_prometheus_asks_the_admin_ports_for_one_name(given: str, name: str) -> None:
    values = SERVERS | {
        "admin": {"tlsSecret": "admin-tls", "serverName": given},
        "metrics": {"serviceMonitor": {"enabled": True}},
    }
    (monitor,) = of_kind(template(values), "ServiceMonitor").values()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["serverName"] == name


def test_what_helm_test_runs_has_the_apis_keys_where_there_are_none_for_all() -> None:
    own = {"api": {"s3ExistingSecret": "api-s3"}, "ingester": {"s3ExistingSecret": "ingester-s3"}}
    for s3, wanted in (({}, "api-s3"), ({"existingSecret": "for-all"}, "for-all")):
        values = SERVERS | own | {"s3": s3}
        text = {name: json.dumps(pod) for name, pod in pods(template(values)).items()}
        for name in ("Pod/store-inference-store-smoke", "Pod/store-inference-store-doctor"):
            assert f'{{"name": "{wanted}", "key": "access-key"}}' in text[name]


def test_a_volume_of_ones_own_is_in_every_pod() -> None:
    volume = {"name": "company-ca", "configMap": {"name": "company-ca"}}
    mount = {"name": "company-ca", "mountPath": "/etc/company-ca", "readOnly": True}
    values = SERVERS | {"extraVolumes": [volume], "extraVolumeMounts": [mount]}
    found = pods(template(values))
    assert len(found) == len(OURS)
    for name, pod in found.items():
        assert volume in pod["spec"]["volumes"], name
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            assert mount in container["volumeMounts"], name


def test_every_image_is_fetched_with_the_given_secrets() -> None:
    values = {
        "dev": {"enabled": True},
        "imagePullSecrets": [{"name": "mine"}, "named"],
        "image": {"pullSecrets": ["registry", "mine"]},
    }
    found = pods(template(values))
    assert any(name.startswith("StatefulSet") for name in found)
    for name, pod in found.items():
        assert pod["spec"]["imagePullSecrets"] == [
            {"name": "mine"},
            {"name": "named"},
            {"name": "registry"},
        ], name


def test_an_image_is_of_the_given_registry() -> None:
    image = {"registry": "registry.example.com/", "repository": "vision/store", "tag": "1"}
    for name, pod in pods(template(SERVERS | {"image": image})).items():
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            assert container["image"] == "registry.example.com/vision/store:1", name


def test_an_ingress_has_the_paths_and_certificates_of_each_host() -> None:
    ingress = {
        "enabled": True,
        "hosts": [
            "all.example.com",
            {
                "host": "some.example.com",
                "paths": [{"path": "/v1"}, {"path": "/docs", "pathType": "Exact"}],
            },
        ],
        "tls": [{"secretName": "one", "hosts": ["all.example.com"]}, {"secretName": "other"}],
    }
    (made,) = of_kind(template(SERVERS | {"ingress": ingress}), "Ingress").values()
    service = {"name": "store-inference-store-api", "port": {"name": "http"}}
    assert [
        (rule["host"], path["path"], path["pathType"], path["backend"]["service"] == service)
        for rule in made["spec"]["rules"]
        for path in rule["http"]["paths"]
    ] == [
        ("all.example.com", "/", "Prefix", True),
        ("some.example.com", "/v1", "Prefix", True),
        ("some.example.com", "/docs", "Exact", True),
    ]
    assert made["spec"]["tls"] == ingress["tls"]


def test_one_certificate_is_for_all_hosts() -> None:
    ingress = {"enabled": True, "hosts": ["a.example.com", {"host": "b.example.com"}]}
    values = SERVERS | {"ingress": ingress | {"tlsSecret": "one"}}
    (made,) = of_kind(template(values), "Ingress").values()
    hosts = ["a.example.com", "b.example.com"]
    assert made["spec"]["tls"] == [{"hosts": hosts, "secretName": "one"}]


def test_objects_of_ones_own_come_with_the_release() -> None:
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain"}}
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: '{{ .Release.Name }}-filled'\n"
    named = plain | {"metadata": {"name": "{{ .Release.Name }}-named"}}
    found = of_kind(template(SERVERS | {"extraManifests": [plain, text, named]}), "ConfigMap")
    assert {"plain", "store-filled", "store-named"} <= set(found)


@pytest.mark.parametrize(("secret", "said"), [("api-tls", "https"), ("", None)])
def test_the_service_says_when_the_api_speaks_tls(secret: str, said: str | None) -> None:
    values = SERVERS | {"api": {"tlsSecret": secret}}
    service = of_kind(template(values), "Service")["store-inference-store-api"]
    assert service["spec"]["ports"][0].get("appProtocol") == said


@pytest.mark.parametrize(
    ("given", "set_to"), [(False, "off"), (True, "on"), ("off", "off"), ("on", "on"), ("", None)]
)
def test_off_in_a_values_file_is_off(given: bool | str, set_to: str | None) -> None:
    """YAML reads the bare word as a boolean."""
    values: Values = SERVERS | {"s3": {"existingSecret": "s3", "presignedUrls": given}}
    config = of_kind(template(values), "ConfigMap")["store-inference-store"]
    assert config["data"].get("INFERENCE_STORE_PRESIGNED_URLS") == set_to
