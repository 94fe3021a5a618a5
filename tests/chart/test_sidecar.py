"""A proxy in the pod of another: the patch of the chart, and the example manifests."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from .matrix import MATRIX, SERVERS
from .rendering import CHART, FULL, Object, Values, check_fields, render_objects, select_kind
from .test_proxy import read_configuration, read_settings

pytestmark = pytest.mark.usefixtures("require_helm")
EXAMPLES = CHART / "examples"
SIDECARS = {
    name: values
    for name, values in MATRIX.items()
    if values.get("proxy", {}).get("sidecar", {}).get("enabled")
}


def render_patch(values: Values, name: str = "store") -> Object:
    """Return what the patch adds to the template of a pod."""
    config_maps = select_kind(render_objects(values, name=name), "ConfigMap")
    (text,) = (
        config_map["data"]["patch.yaml"]
        for key, config_map in config_maps.items()
        if key.endswith("-patch")
    )
    return dict(yaml.safe_load(text)["spec"]["template"])


def make_pod(spec: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}


def read_example(name: str) -> list[Object]:
    return list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))


def read_example_values(name: str) -> Values:
    own: Values = yaml.safe_load((EXAMPLES / f"{name}.values.yaml").read_text())
    return SERVERS | own


def test_pod_with_it_is_valid_and_has_every_volume() -> None:
    for row, values in SIDECARS.items():
        patch = render_patch(values)["spec"]
        model = {"name": "model", "image": "model:1"}
        check_fields([make_pod({**patch, "containers": [model, *patch["containers"]]})])
        volumes = {volume["name"] for volume in patch["volumes"]}
        assert {mount["name"] for mount in patch["containers"][0]["volumeMounts"]} <= volumes, row
        extra = {volume["name"] for volume in values.get("pods", {}).get("extraVolumes", ())}
        assert all(name.startswith("inference-store-") for name in volumes - extra), row


def test_has_pull_secrets_and_is_a_native_sidecar_and_a_component_of_kustomize() -> None:
    values = MATRIX["only sidecars"] | {"imagePullSecrets": [{"name": "mine"}]}
    (container,) = render_patch(values)["spec"]["containers"]
    sidecar = values["proxy"]["sidecar"] | {"native": True}
    values |= {"proxy": values["proxy"] | {"sidecar": sidecar}}
    template = render_patch(values)
    assert template["spec"]["initContainers"] == [container | {"restartPolicy": "Always"}]
    assert template["spec"]["imagePullSecrets"] == [{"name": "mine"}]
    check_fields([make_pod(template["spec"] | {"containers": [{"name": "model"}]})])
    data = select_kind(render_objects(values), "ConfigMap")[f"{FULL}-proxy-sidecar-patch"]["data"]
    component = yaml.safe_load(data["kustomization.yaml"])
    assert component["kind"] == "Component"
    (patch,) = component["patches"]
    assert yaml.safe_load(patch["patch"])["spec"]["template"] == template


def test_is_restricted_by_its_own_settings_and_has_no_secrets() -> None:
    for row, values in SIDECARS.items():
        (container,) = render_patch(values)["spec"]["containers"]
        closed = container["securityContext"]
        assert closed["runAsNonRoot"] is True, row
        assert closed["runAsUser"] > 0, row
        assert closed["seccompProfile"] == {"type": "RuntimeDefault"}, row
        assert closed["readOnlyRootFilesystem"] is True, row
        assert closed["allowPrivilegeEscalation"] is False, row
        assert closed["capabilities"] == {"drop": ["ALL"]}, row
        assert container["resources"]["limits"]["memory"], row
        assert all("value" not in variable for variable in container.get("env", ())), row
        settings = read_settings(values, f"{FULL}-proxy-sidecar")
        text = (json.dumps(render_patch(values)) + json.dumps(settings)).upper()
        for word in ("POSTGRES", "API_TOKEN", "API-TOKEN", "DSN"):
            assert word not in text, (row, word)


def test_ports_probes_and_settings_agree() -> None:
    for row, values in SIDECARS.items():
        (container,) = render_patch(values)["spec"]["containers"]
        environment = read_settings(values, f"{FULL}-proxy-sidecar")
        assert [str(port["containerPort"]) for port in container["ports"]] == [
            environment[name] for name in ("PROXY_PORT", "PROXY_GRPC_PORT", "PROXY_ADMIN_PORT")
        ], row
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == container["ports"][2]["name"], row
        # The default of Kubernetes, if the pod has no grace period.
        assert 5 + float(environment["PROXY_GRACE_SECONDS"]) + 10 <= 30, row


def test_product_accepts_its_configuration(tmp_path: Path) -> None:
    name = f"{FULL}-proxy-sidecar-configuration"
    (upstream,) = read_configuration(MATRIX["trying out with a proxy"], tmp_path, name).upstreams
    assert (upstream.url, upstream.grpc) == ("http://127.0.0.1:8080", None)
    (upstream,) = read_configuration(MATRIX["only sidecars"], tmp_path, name).upstreams
    assert (upstream.url, upstream.grpc) == (None, "127.0.0.1:9000")
    assert upstream.protocols == ("v2-grpc",)


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
    objects = render_objects({"inference-store": values}, chart=tmp_path)
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


def test_examples_agree_with_the_chart() -> None:
    for name in ("deployment", "kserve", "seldon"):
        pod = find_pod(name, read_example(name))
        own = render_patch(read_example_values(name))["spec"]
        assert own["containers"][0] in pod["containers"], name
        assert own["volumes"] == pod["volumes"], name
        assert "inference-store/proxy: sidecar" in (EXAMPLES / f"{name}.yaml").read_text()
        pod.pop("model", None)  # an addition of KServe
        check_fields([make_pod(pod)])


def test_service_of_the_example_leads_to_the_proxy() -> None:
    deployment, service = read_example("deployment")
    check_fields([deployment, service])
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
