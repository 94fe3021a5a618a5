"""A proxy in another's pod: the patch of the chart, and the manifests that show where it goes."""

import json
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from .matrix import MATRIX, SERVERS
from .rendering import CHART, Object, Values, cache_folder, of_kind, program, template
from .test_proxy import FULL, read, settings

pytestmark = pytest.mark.usefixtures("helm_is_here")
EXAMPLES = CHART / "examples"
NAMES = ("deployment", "kserve", "seldon")
SIDECARS = {
    name: values
    for name, values in MATRIX.items()
    if values.get("proxy", {}).get("sidecar", {}).get("enabled")
}
every_sidecar = pytest.mark.parametrize("values", SIDECARS.values(), ids=SIDECARS)


def patch(values: Values, name: str = "store") -> Object:
    """What a pod's template gets."""
    found = of_kind(template(values, name=name), "ConfigMap")
    (text,) = (one["data"]["patch.yaml"] for key, one in found.items() if key.endswith("-patch"))
    return dict(yaml.safe_load(text)["spec"]["template"])


def merged(own: Object, values: Values) -> Object:
    """A pod with the sidecar in it."""
    pod = deepcopy(own)
    for part in ("containers", "volumes"):
        pod.setdefault(part, []).extend(patch(values)["spec"][part])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod}


def check(*objects: Object) -> None:
    """Kubernetes knows every field."""
    schemas = f"{cache_folder()}/schemas/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    done = subprocess.run(
        [str(program("kubeconform")), "-strict", "-schema-location", schemas],
        input="\n---\n".join(json.dumps(one) for one in objects),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def examples(name: str) -> list[Object]:
    return list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))


def values_of(name: str) -> Values:
    own: Values = yaml.safe_load((EXAMPLES / f"{name}.values.yaml").read_text())
    return SERVERS | own


@every_sidecar
def test_a_pod_with_it_is_valid_and_every_mount_has_its_volume(values: Values) -> None:
    pod = merged({"containers": [{"name": "model", "image": "model:1"}]}, values)
    check(pod)
    (container,) = patch(values)["spec"]["containers"]
    volumes = {one["name"] for one in patch(values)["spec"]["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} <= volumes
    extra = {one["name"] for one in values.get("extraVolumes", ())}
    assert all(name.startswith("inference-store-") for name in volumes - extra)


@every_sidecar
def test_it_is_restricted_without_help_of_the_pods_own_settings(values: Values) -> None:
    (container,) = patch(values)["spec"]["containers"]
    closed = container["securityContext"]
    assert closed["runAsNonRoot"] is True
    assert closed["runAsUser"] > 0
    assert closed["seccompProfile"] == {"type": "RuntimeDefault"}
    assert closed["readOnlyRootFilesystem"] is True
    assert closed["allowPrivilegeEscalation"] is False
    assert closed["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"]


@every_sidecar
def test_it_holds_no_secret_and_learns_nothing_of_postgres(values: Values) -> None:
    (container,) = patch(values)["spec"]["containers"]
    assert all("value" not in one for one in container.get("env", ()))
    text = (
        json.dumps(patch(values)) + json.dumps(settings(values, f"{FULL}-proxy-sidecar"))
    ).upper()
    for word in ("POSTGRES", "API_TOKEN", "API-TOKEN", "DSN"):
        assert word not in text, word


@every_sidecar
def test_its_ports_its_probes_and_its_settings_agree(values: Values) -> None:
    (container,) = patch(values)["spec"]["containers"]
    told = settings(values, f"{FULL}-proxy-sidecar")
    rest, grpc, admin = (one["containerPort"] for one in container["ports"])
    assert (str(rest), str(grpc)) == (told["PROXY_PORT"], told["PROXY_GRPC_PORT"])
    assert str(admin) == told["PROXY_ADMIN_PORT"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == container["ports"][2]["name"]
    # Kubernetes' default, where the pod does not say.
    assert 5 + float(told["PROXY_GRACE_SECONDS"]) + 10 <= 30


def test_the_product_takes_its_configuration(tmp_path: Path) -> None:
    name = f"{FULL}-proxy-sidecar-configuration"
    (upstream,) = read(MATRIX["trying out with a proxy"], tmp_path, name).upstreams
    assert (upstream.url, upstream.grpc) == ("http://127.0.0.1:8080", None)
    (upstream,) = read(MATRIX["only sidecars"], tmp_path, name).upstreams
    assert (upstream.url, upstream.grpc) == (None, "127.0.0.1:9000")
    assert upstream.protocols == ("v2-grpc",)


def test_a_token_of_the_pods_own_account_is_exchanged() -> None:
    volumes = {one["name"]: one for one in patch(MATRIX["only sidecars"])["spec"]["volumes"]}
    (source,) = volumes["inference-store-web-identity"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "sts.amazonaws.com"


def test_variables_of_our_own_services_are_not_taken_for_settings() -> None:
    values = MATRIX["trying out with a proxy"]
    assert "enableServiceLinks" not in patch(values)["spec"]
    assert patch(values, "inference-store")["spec"]["enableServiceLinks"] is False


def test_prometheus_finds_it_by_its_label() -> None:
    values = MATRIX["only sidecars"]
    (monitor,) = of_kind(template(values), "PodMonitor").values()
    assert monitor["spec"]["selector"]["matchLabels"] == patch(values)["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = patch(values)["spec"]["containers"]
    assert endpoint["port"] in {one["name"] for one in container["ports"]}
    assert endpoint["scheme"] == "https"


def test_another_chart_can_include_it(tmp_path: Path) -> None:
    """As a dependency, by the name of the template."""
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
        [str(program("helm")), "template", "store", str(tmp_path), "--kube-version", "1.33.0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert of_kind(objects, "Pod")["mine"]["spec"] == patch(values)["spec"]


def pod_of(name: str, objects: list[Object]) -> dict[str, Any]:
    """Where each manifest has its pod's specification."""
    spec = objects[0]["spec"]
    places = {
        "deployment": lambda: spec["template"]["spec"],
        "kserve": lambda: spec["predictor"],
        "seldon": lambda: spec["predictors"][0]["componentSpecs"][0]["spec"],
    }
    return dict(places[name]())


@pytest.mark.parametrize("name", NAMES)
def test_an_example_has_what_the_chart_renders(name: str) -> None:
    pod, own = pod_of(name, examples(name)), patch(values_of(name))["spec"]
    assert own["containers"][0] in pod["containers"]
    assert own["volumes"] == pod["volumes"]
    text = (EXAMPLES / f"{name}.yaml").read_text()
    assert "inference-store/proxy: sidecar" in text
    check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": _plain(pod)})


def _plain(pod: dict[str, Any]) -> dict[str, Any]:
    """Without what KServe adds to a pod's specification."""
    return {name: value for name, value in pod.items() if name != "model"}


def test_the_plain_deployment_is_valid_and_its_service_leads_to_the_proxy() -> None:
    deployment, service = examples("deployment")
    check(deployment, service)
    own = patch(values_of("deployment"))["spec"]["containers"][0]
    named = {one["name"] for one in own["ports"]}
    assert {one["targetPort"] for one in service["spec"]["ports"]} <= named
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_kserve_finds_the_proxy_by_its_name_and_its_first_port() -> None:
    (service,) = examples("kserve")
    (container,) = service["spec"]["predictor"]["containers"]
    assert container["name"] == "transformer-container"
    assert container["ports"][0]["containerPort"] == 8090


def test_seldon_finds_the_proxy_by_the_graphs_name_and_the_ports_names() -> None:
    (seldon,) = examples("seldon")
    (predictor,) = seldon["spec"]["predictors"]
    called = predictor["graph"]["name"]
    (container,) = (
        one for one in pod_of("seldon", [seldon])["containers"] if one["name"] == called
    )
    assert [one["name"] for one in container["ports"][:2]] == ["http", "grpc"]
