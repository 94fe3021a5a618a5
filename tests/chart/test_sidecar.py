"""A proxy in the pod of another: the patch of the chart, and the example manifests."""

import json
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from .matrix import MATRIX, SERVERS
from .rendering import (
    CHART,
    Object,
    Values,
    find_cache_folder,
    find_program,
    render_objects,
    select_kind,
)
from .test_proxy import FULL, read_configuration, read_settings

pytestmark = pytest.mark.usefixtures("require_helm")
EXAMPLES = CHART / "examples"
NAMES = ("deployment", "kserve", "seldon")
SIDECARS = {
    name: values
    for name, values in MATRIX.items()
    if values.get("proxy", {}).get("sidecar", {}).get("enabled")
}
with_every_sidecar = pytest.mark.parametrize("values", SIDECARS.values(), ids=SIDECARS)


def render_patch(values: Values, name: str = "store") -> Object:
    """Return what the patch adds to the template of a pod."""
    config_maps = select_kind(render_objects(values, name=name), "ConfigMap")
    (text,) = (
        config_map["data"]["patch.yaml"]
        for key, config_map in config_maps.items()
        if key.endswith("-patch")
    )
    return dict(yaml.safe_load(text)["spec"]["template"])


def add_sidecar(own: Object, values: Values) -> Object:
    """Return a pod with the sidecar in it."""
    pod = deepcopy(own)
    for part in ("containers", "volumes"):
        pod.setdefault(part, []).extend(render_patch(values)["spec"][part])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod}


def check_fields(*objects: Object) -> None:
    """Check that Kubernetes knows every field."""
    schemas = f"{find_cache_folder()}/schemas/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    done = subprocess.run(
        [str(find_program("kubeconform")), "-strict", "-schema-location", schemas],
        input="\n---\n".join(json.dumps(document) for document in objects),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def read_example(name: str) -> list[Object]:
    return list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))


def read_example_values(name: str) -> Values:
    own: Values = yaml.safe_load((EXAMPLES / f"{name}.values.yaml").read_text())
    return SERVERS | own


@with_every_sidecar
def test_pod_with_it_is_valid_and_has_every_volume(values: Values) -> None:
    pod = add_sidecar({"containers": [{"name": "model", "image": "model:1"}]}, values)
    check_fields(pod)
    (container,) = render_patch(values)["spec"]["containers"]
    volumes = {volume["name"] for volume in render_patch(values)["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    extra = {volume["name"] for volume in values.get("extraVolumes", ())}
    assert all(name.startswith("inference-store-") for name in volumes - extra)


@with_every_sidecar
def test_is_restricted_by_its_own_settings(values: Values) -> None:
    (container,) = render_patch(values)["spec"]["containers"]
    closed = container["securityContext"]
    assert closed["runAsNonRoot"] is True
    assert closed["runAsUser"] > 0
    assert closed["seccompProfile"] == {"type": "RuntimeDefault"}
    assert closed["readOnlyRootFilesystem"] is True
    assert closed["allowPrivilegeEscalation"] is False
    assert closed["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"]


@with_every_sidecar
def test_has_no_secrets_and_no_settings_of_postgres(values: Values) -> None:
    (container,) = render_patch(values)["spec"]["containers"]
    assert all("value" not in variable for variable in container.get("env", ()))
    text = (
        json.dumps(render_patch(values))
        + json.dumps(read_settings(values, f"{FULL}-proxy-sidecar"))
    ).upper()
    for word in ("POSTGRES", "API_TOKEN", "API-TOKEN", "DSN"):
        assert word not in text, word


@with_every_sidecar
def test_ports_probes_and_settings_agree(values: Values) -> None:
    (container,) = render_patch(values)["spec"]["containers"]
    environment = read_settings(values, f"{FULL}-proxy-sidecar")
    rest, grpc, admin = (port["containerPort"] for port in container["ports"])
    assert (str(rest), str(grpc)) == (environment["PROXY_PORT"], environment["PROXY_GRPC_PORT"])
    assert str(admin) == environment["PROXY_ADMIN_PORT"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == container["ports"][2]["name"]
    # The default of Kubernetes, if the pod has no grace period.
    assert 5 + float(environment["PROXY_GRACE_SECONDS"]) + 10 <= 30


def test_product_accepts_its_configuration(tmp_path: Path) -> None:
    name = f"{FULL}-proxy-sidecar-configuration"
    (upstream,) = read_configuration(MATRIX["trying out with a proxy"], tmp_path, name).upstreams
    assert (upstream.url, upstream.grpc) == ("http://127.0.0.1:8080", None)
    (upstream,) = read_configuration(MATRIX["only sidecars"], tmp_path, name).upstreams
    assert (upstream.url, upstream.grpc) == (None, "127.0.0.1:9000")
    assert upstream.protocols == ("v2-grpc",)


def test_mounts_a_token_of_the_service_account() -> None:
    volumes = {
        volume["name"]: volume
        for volume in render_patch(MATRIX["only sidecars"])["spec"]["volumes"]
    }
    (source,) = volumes["inference-store-web-identity"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "sts.amazonaws.com"


def test_disables_service_links_if_their_names_are_settings() -> None:
    values = MATRIX["trying out with a proxy"]
    assert "enableServiceLinks" not in render_patch(values)["spec"]
    assert render_patch(values, "inference-store")["spec"]["enableServiceLinks"] is False


def test_pod_monitor_selects_it_by_its_label() -> None:
    values = MATRIX["only sidecars"]
    (monitor,) = select_kind(render_objects(values), "PodMonitor").values()
    assert monitor["spec"]["selector"]["matchLabels"] == render_patch(values)["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = render_patch(values)["spec"]["containers"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    assert endpoint["scheme"] == "https"


def test_another_chart_can_include_the_sidecar(tmp_path: Path) -> None:
    """The other chart has it as a dependency, and includes the template by its name."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "inference-store").symlink_to(CHART)
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: mine, version: 1.0.0}")
    (tmp_path / "templates" / "pod.yaml").write_text(
        '{{- $own := dict "root" (index .Subcharts "inference-store") }}\n'
        '{{- $proxy := include "inference-store.proxySidecar" $own | fromYaml }}\n'
        "apiVersion: v1\nkind: Pod\nmetadata: {name: mine}\n"
        "spec: {{ toYaml $proxy.spec | nindent 2 }}\n"
    )
    values = SERVERS | {"proxy": {"sidecar": {"enabled": True}}}
    (tmp_path / "values.yaml").write_text(json.dumps({"inference-store": values}))
    done = subprocess.run(
        [str(find_program("helm")), "template", "store", str(tmp_path), "--kube-version", "1.33.0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    objects = [document for document in yaml.safe_load_all(done.stdout) if document]
    assert select_kind(objects, "Pod")["mine"]["spec"] == render_patch(values)["spec"]


def find_pod(name: str, objects: list[Object]) -> dict[str, Any]:
    """Return the specification of the pod of a manifest."""
    spec = objects[0]["spec"]
    places = {
        "deployment": lambda: spec["template"]["spec"],
        "kserve": lambda: spec["predictor"],
        "seldon": lambda: spec["predictors"][0]["componentSpecs"][0]["spec"],
    }
    return dict(places[name]())


@pytest.mark.parametrize("name", NAMES)
def test_example_agrees_with_the_chart(name: str) -> None:
    pod, own = find_pod(name, read_example(name)), render_patch(read_example_values(name))["spec"]
    assert own["containers"][0] in pod["containers"]
    assert own["volumes"] == pod["volumes"]
    text = (EXAMPLES / f"{name}.yaml").read_text()
    assert "inference-store/proxy: sidecar" in text
    check_fields(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": _remove_model(pod)}
    )


def _remove_model(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of a pod without the additions of KServe."""
    return {name: value for name, value in pod.items() if name != "model"}


def test_service_of_the_example_leads_to_the_proxy() -> None:
    deployment, service = read_example("deployment")
    check_fields(deployment, service)
    own = render_patch(read_example_values("deployment"))["spec"]["containers"][0]
    port_names = {port["name"] for port in own["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= port_names
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_kserve_example_has_the_required_name_and_port() -> None:
    (service,) = read_example("kserve")
    (container,) = service["spec"]["predictor"]["containers"]
    assert container["name"] == "transformer-container"
    assert container["ports"][0]["containerPort"] == 8090


def test_seldon_example_has_the_required_names() -> None:
    (seldon,) = read_example("seldon")
    (predictor,) = seldon["spec"]["predictors"]
    called = predictor["graph"]["name"]
    (container,) = (
        container_spec
        for container_spec in find_pod("seldon", [seldon])["containers"]
        if container_spec["name"] == called
    )
    assert [port["name"] for port in container["ports"][:2]] == ["http", "grpc"]
