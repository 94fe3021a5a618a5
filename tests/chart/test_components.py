"""Values that reach every component, and values that each component may have for itself."""

import pytest

from .matrix import MATRIX, SERVERS, UPSTREAMS
from .rendering import FULL, Values, list_containers, render_objects, select_kind, select_pods

pytestmark = pytest.mark.real_helm
PLAIN = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain"}}
PATHS = [{"path": "/v1"}, {"path": "/docs", "pathType": "Exact"}]
# One installation with what is said once and reaches many objects.
COMMON: Values = {
    "dev": {"enabled": True},
    "imagePullSecrets": [{"name": "mine"}, {"name": "registry"}],
    "image": {"registry": "registry.example.com/", "repository": "vision/store", "tag": "1"},
    "extraManifests": [
        PLAIN,
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: '{{ .Release.Name }}-filled'\n",
        PLAIN | {"metadata": {"name": "{{ .Release.Name }}-named"}},
    ],
    "api": {
        "ingress": {
            "enabled": True,
            "hosts": ["all.example.com", {"host": "some.example.com", "paths": PATHS}],
            "tls": [{"secretName": "one", "hosts": ["all.example.com"]}, {"secretName": "other"}],
        }
    },
    "admin": {"tlsSecret": "admin-tls", "serverName": "admin.example.com"},
    "metrics": {"serviceMonitor": {"enabled": True}},
    "s3": {"presignedUrls": False},
}
CERTIFICATES = MATRIX["certificates, SASL and encryption"]
TOKENS = MATRIX["tokens instead of passwords"]
EVERYTHING = MATRIX["everything that may be left out"]


def test_prometheus_expects_one_name_at_the_admin_ports() -> None:
    for values, name in ((MATRIX["only sidecars"], FULL), (COMMON, "admin.example.com")):
        (monitor,) = select_kind(render_objects(values), "ServiceMonitor").values()
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["scheme"] == "https"
        assert endpoint["tlsConfig"]["serverName"] == name


def test_images_hosts_and_extra_manifests_are_as_given() -> None:
    objects = render_objects(COMMON)
    pods = select_pods(objects)
    assert any(name.startswith("StatefulSet") for name in pods)
    for name, pod in pods.items():
        assert pod["spec"]["imagePullSecrets"] == COMMON["imagePullSecrets"], name
        if not name.startswith("StatefulSet"):
            images = {container["image"] for container in list_containers(pod)}
            assert images == {"registry.example.com/vision/store:1"}, name
    assert {"plain", "store-filled", "store-named"} <= set(select_kind(objects, "ConfigMap"))
    (rendered,) = select_kind(objects, "Ingress").values()
    service = {"name": f"{FULL}-api", "port": {"name": "http"}}
    assert [
        (rule["host"], path["path"], path["pathType"], path["backend"]["service"] == service)
        for rule in rendered["spec"]["rules"]
        for path in rule["http"]["paths"]
    ] == [
        ("all.example.com", "/", "Prefix", True),
        ("some.example.com", "/v1", "Prefix", True),
        ("some.example.com", "/docs", "Exact", True),
    ]
    assert rendered["spec"]["tls"] == COMMON["api"]["ingress"]["tls"]


def test_each_port_of_the_gateway_has_its_route() -> None:
    """Rules without a match take every call."""
    objects = render_objects(MATRIX["a gateway with rights of its own"])
    for kind, port in (("HTTPRoute", 8090), ("GRPCRoute", 8091)):
        ((rule,),) = (route["spec"]["rules"] for route in select_kind(objects, kind).values())
        assert rule == {"backendRefs": [{"name": f"{FULL}-proxy", "port": port}]}


def list_owners(values: Values) -> set[str]:
    labels = (entry["metadata"]["labels"] for entry in render_objects(values))
    return {str(own["app.kubernetes.io/component"]) for own in labels}


def test_what_is_disabled_is_not_installed() -> None:
    assert list_owners(MATRIX["the proxy alone"]) == {"proxy"}
    assert "proxy" not in list_owners(SERVERS)
    for name in ("api", "ingester", "retention", "migration"):
        gone = list_owners(SERVERS) - list_owners(SERVERS | {name: {"enabled": False}})
        assert gone - {"doctor"} == {"migrate" if name == "migration" else name}


def test_common_labels_and_annotations_are_on_every_object() -> None:
    common = {"commonLabels": {"l": "1"}, "commonAnnotations": {"c": "1"}}
    for row, values in MATRIX.items():
        for entry in render_objects({**values, **common, "extraManifests": []}):
            found = entry["metadata"]
            assert (found["labels"]["l"], found["annotations"]["c"]) == ("1", "1"), (row, entry)


def test_off_in_a_values_file_means_off() -> None:
    """YAML reads the bare word as a boolean."""
    for values, set_to in ((COMMON, "off"), (TOKENS, "on"), (CERTIFICATES, "off"), (SERVERS, None)):
        config = select_kind(render_objects(values), "ConfigMap")[FULL]
        assert config["data"].get("INFERENCE_STORE_PRESIGNED_URLS") == set_to


def test_helm_test_uses_the_s3_keys_of_the_api_if_there_are_no_others() -> None:
    for values, release, secret in (
        (TOKENS, FULL, "api-s3"),
        (EVERYTHING, "store-inferences", "store-s3"),
    ):
        pods = select_pods(render_objects(values))
        assert [
            variable["valueFrom"]["secretKeyRef"]["name"]
            for variable in pods[f"Pod/{release}-doctor"]["spec"]["containers"][0]["env"]
            if variable["name"] == "INFERENCE_STORE_S3_ACCESS_KEY"
        ] == [secret]


IDS = {"runAsUser", "runAsGroup", "fsGroup"}


def test_sets_no_uid_if_none_is_given_and_on_openshift_only_a_given_one() -> None:
    none: Values = {
        "pods": {"podSecurityContext": {"runAsUser": None, "runAsGroup": "", "fsGroup": None}},
        "dev": {
            "enabled": True,
            "postgres": {"uid": None},
            "kafka": {"uid": ""},
            "s3": {"uid": None},
        },
        "proxy": {
            "enabled": True,
            "upstreams": UPSTREAMS,
            "sidecar": {"enabled": True, "securityContext": {"runAsUser": None, "runAsGroup": 7}},
        },
    }
    one: Values = {
        "dev": {"enabled": True},
        "proxy": {"enabled": True, "upstreams": UPSTREAMS, "sidecar": {"enabled": True}},
        "api": {"podSecurityContext": {"runAsUser": 1000660000}},
    }
    # `helm test` takes the api's values
    given = dict.fromkeys((f"Deployment/{FULL}-api", f"Pod/{FULL}-doctor"), 1000660000)
    openshift = "--api-versions=security.openshift.io/v1"
    for objects, uids, group in (
        (render_objects(none), {}, "runAsGroup: 7"),
        (render_objects(one, openshift), given, "runAsNonRoot: true"),
    ):
        pods = select_pods(objects)
        assert len(pods) > 8
        for name, pod in pods.items():
            security = pod["spec"]["securityContext"]
            assert IDS & set(security) == ({"runAsUser"} if name in uids else set()), name
            assert security.get("runAsUser") == uids.get(name), name
            assert security["runAsNonRoot"] is True, name
        data = select_kind(objects, "ConfigMap")[f"{FULL}-proxy-sidecar-patch"]["data"]
        assert "runAsUser" not in data["patch.yaml"]
        assert group in data["patch.yaml"]
        assert "readOnlyRootFilesystem: true" in data["patch.yaml"]
