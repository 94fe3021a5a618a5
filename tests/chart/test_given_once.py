"""Values that reach several objects: each object has the given value."""

import json

import pytest

from .matrix import SERVERS
from .rendering import Values, render_objects, select_kind, select_pods

pytestmark = pytest.mark.usefixtures("require_helm")
OURS = ("api", "ingester", "retention", "migrate", "smoke", "doctor")


@pytest.mark.parametrize(
    ("server_name", "name"),
    [("", "store-inference-store"), ("admin.example.com", "admin.example.com")],
)
def test_prometheus_expects_one_name_at_the_admin_ports(server_name: str, name: str) -> None:
    values = SERVERS | {
        "admin": {"tlsSecret": "admin-tls", "serverName": server_name},
        "metrics": {"serviceMonitor": {"enabled": True}},
    }
    (monitor,) = select_kind(render_objects(values), "ServiceMonitor").values()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["serverName"] == name


def test_helm_test_uses_the_keys_of_the_api_without_common_ones() -> None:
    own = {"api": {"s3ExistingSecret": "api-s3"}, "ingester": {"s3ExistingSecret": "ingester-s3"}}
    for s3, expected in (({}, "api-s3"), ({"existingSecret": "for-all"}, "for-all")):
        values = SERVERS | own | {"s3": s3}
        text = {name: json.dumps(pod) for name, pod in select_pods(render_objects(values)).items()}
        for name in ("Pod/store-inference-store-smoke", "Pod/store-inference-store-doctor"):
            assert f'{{"name": "{expected}", "key": "access-key"}}' in text[name]


def test_extra_volumes_are_in_every_pod() -> None:
    volume = {"name": "company-ca", "configMap": {"name": "company-ca"}}
    mount = {"name": "company-ca", "mountPath": "/etc/company-ca", "readOnly": True}
    values = SERVERS | {"extraVolumes": [volume], "extraVolumeMounts": [mount]}
    specs = select_pods(render_objects(values))
    assert len(specs) == len(OURS)
    for name, pod in specs.items():
        assert volume in pod["spec"]["volumes"], name
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            assert mount in container["volumeMounts"], name


def test_every_image_is_pulled_with_the_given_secrets() -> None:
    values = {
        "dev": {"enabled": True},
        "imagePullSecrets": [{"name": "mine"}, "named"],
        "image": {"pullSecrets": ["registry", "mine"]},
    }
    specs = select_pods(render_objects(values))
    assert any(name.startswith("StatefulSet") for name in specs)
    for name, pod in specs.items():
        assert pod["spec"]["imagePullSecrets"] == [
            {"name": "mine"},
            {"name": "named"},
            {"name": "registry"},
        ], name


def test_images_come_from_the_given_registry() -> None:
    image = {"registry": "registry.example.com/", "repository": "vision/store", "tag": "1"}
    for name, pod in select_pods(render_objects(SERVERS | {"image": image})).items():
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            assert container["image"] == "registry.example.com/vision/store:1", name


def test_ingress_has_the_paths_and_certificates_of_each_host() -> None:
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
    (rendered,) = select_kind(render_objects(SERVERS | {"ingress": ingress}), "Ingress").values()
    service = {"name": "store-inference-store-api", "port": {"name": "http"}}
    assert [
        (rule["host"], path["path"], path["pathType"], path["backend"]["service"] == service)
        for rule in rendered["spec"]["rules"]
        for path in rule["http"]["paths"]
    ] == [
        ("all.example.com", "/", "Prefix", True),
        ("some.example.com", "/v1", "Prefix", True),
        ("some.example.com", "/docs", "Exact", True),
    ]
    assert rendered["spec"]["tls"] == ingress["tls"]


def test_one_certificate_is_for_all_hosts() -> None:
    ingress = {"enabled": True, "hosts": ["a.example.com", {"host": "b.example.com"}]}
    values = SERVERS | {"ingress": ingress | {"tlsSecret": "one"}}
    (rendered,) = select_kind(render_objects(values), "Ingress").values()
    hosts = ["a.example.com", "b.example.com"]
    assert rendered["spec"]["tls"] == [{"hosts": hosts, "secretName": "one"}]


def test_extra_manifests_are_rendered() -> None:
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain"}}
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: '{{ .Release.Name }}-filled'\n"
    templated = plain | {"metadata": {"name": "{{ .Release.Name }}-named"}}
    config_maps = select_kind(
        render_objects(SERVERS | {"extraManifests": [plain, text, templated]}), "ConfigMap"
    )
    assert {"plain", "store-filled", "store-named"} <= set(config_maps)


@pytest.mark.parametrize(("secret", "protocol"), [("api-tls", "https"), ("", None)])
def test_service_names_the_protocol_of_the_api(secret: str, protocol: str | None) -> None:
    values = SERVERS | {"api": {"tlsSecret": secret}}
    service = select_kind(render_objects(values), "Service")["store-inference-store-api"]
    assert service["spec"]["ports"][0].get("appProtocol") == protocol


@pytest.mark.parametrize(
    ("value", "set_to"), [(False, "off"), (True, "on"), ("off", "off"), ("on", "on"), ("", None)]
)
def test_off_in_a_values_file_means_off(value: bool | str, set_to: str | None) -> None:
    """YAML reads the bare word as a boolean."""
    values: Values = SERVERS | {"s3": {"existingSecret": "s3", "presignedUrls": value}}
    config = select_kind(render_objects(values), "ConfigMap")["store-inference-store"]
    assert config["data"].get("INFERENCE_STORE_PRESIGNED_URLS") == set_to
