"""The gateway: the product accepts its configuration, and it has its own credentials."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_store.access.credentials import id_of
from inference_store.platform.settings import PREFIX
from inference_store.proxy.configuration import (
    Configuration,
    WrongConfiguration,
    read_configuration_file,
)

from .matrix import MATRIX, SERVERS, UPSTREAMS
from .rendering import (
    CHART,
    FULL,
    Object,
    Values,
    check_fields,
    check_restricted,
    render_objects,
    select_kind,
    select_pods,
)

pytestmark = pytest.mark.real_helm
OWN = MATRIX["a gateway with rights of its own"]
TRIED = MATRIX["trying out with a proxy"]
GATEWAYS = {name: values for name, values in MATRIX.items() if "upstreams" in str(values)}


def render_pod_template(values: Values) -> Object:
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


def test_product_accepts_the_configuration_or_names_an_error(tmp_path: Path) -> None:
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
    name = f"{FULL}-proxy-sidecar-configuration"
    (upstream,) = read_configuration(TRIED, tmp_path, name).upstreams
    assert (upstream.url, upstream.grpc) == ("http://127.0.0.1:8080", None)
    (upstream,) = read_configuration(MATRIX["only sidecars"], tmp_path, name).upstreams
    assert (upstream.url, upstream.grpc) == (None, "127.0.0.1:9000")
    assert upstream.protocols == ("v2-grpc",)
    misspelt = {"enabled": True, "upstreams": [{**UPSTREAMS[0], "read_secnds": 3}]}
    with pytest.raises(WrongConfiguration, match="the nearest are read_seconds"):
        read_configuration(SERVERS | {"proxy": misspelt}, tmp_path)


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


def test_spool_and_grace_period_are_bounded() -> None:
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
    # the time to end covers calls and captures
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
    # both events of a logged call reach one pod
    service = select_kind(render_objects(OWN), "Service")[f"{FULL}-proxy"]["spec"]
    assert service["sessionAffinity"] == "ClientIP"


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


# A proxy in the pod of another: the patch of the chart, and the example manifests.

EXAMPLES = CHART / "examples"
SIDECARS = {
    name: values
    for name, values in MATRIX.items()
    if values.get("proxy", {}).get("sidecar", {}).get("enabled")
}


def render_patch(values: Values, name: str = "store") -> Object:
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


def test_pod_with_it_is_valid_restricted_and_has_no_secrets() -> None:
    for row, values in SIDECARS.items():
        patch = render_patch(values)["spec"]
        (container,) = patch["containers"]
        model = {"name": "model", "image": "model:1"}
        check_fields([make_pod({**patch, "containers": [model, container]})])
        volumes = {volume["name"] for volume in patch["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, row
        extra = {volume["name"] for volume in values.get("pods", {}).get("extraVolumes", ())}
        assert all(name.startswith("inference-store-") for name in volumes - extra), row
        closed = container["securityContext"]
        assert closed["runAsNonRoot"] is True, row
        assert closed["runAsUser"] > 0, row
        assert closed["seccompProfile"] == {"type": "RuntimeDefault"}, row
        check_restricted(container)
        assert all("value" not in variable for variable in container.get("env", ())), row
        settings = read_settings(values, f"{FULL}-proxy-sidecar")
        text = (json.dumps(render_patch(values)) + json.dumps(settings)).upper()
        for word in ("POSTGRES", "API_TOKEN", "API-TOKEN", "DSN"):
            assert word not in text, (row, word)
        assert [str(port["containerPort"]) for port in container["ports"]] == [
            settings[name] for name in ("PROXY_PORT", "PROXY_GRPC_PORT", "PROXY_ADMIN_PORT")
        ], row
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == container["ports"][2]["name"], row
        # The default of Kubernetes, if the pod has no grace period.
        assert 5 + float(settings["PROXY_GRACE_SECONDS"]) + 10 <= 30, row


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


def test_pod_monitor_selects_it_and_links_that_would_be_settings_are_disabled() -> None:
    assert "enableServiceLinks" not in render_patch(TRIED)["spec"]
    assert render_patch(TRIED, "inference-store")["spec"]["enableServiceLinks"] is False
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
    # the Service of the Deployment leads to the proxy
    deployment, service = read_example("deployment")
    check_fields([deployment, service])
    own = render_patch(read_example_values("deployment"))["spec"]["containers"][0]
    port_names = {port["name"] for port in own["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= port_names
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_examples_have_the_names_that_kserve_and_seldon_require() -> None:
    (service,) = read_example("kserve")
    (container,) = service["spec"]["predictor"]["containers"]
    assert container["name"] == "transformer-container"
    assert container["ports"][0]["containerPort"] == 8090
    (seldon,) = read_example("seldon")
    (predictor,) = seldon["spec"]["predictors"]
    called = predictor["graph"]["name"]
    (container,) = (
        container_spec
        for container_spec in find_pod("seldon", [seldon])["containers"]
        if container_spec["name"] == called
    )
    assert [port["name"] for port in container["ports"][:2]] == ["http", "grpc"]
