"""Each component may have its own node, user, resources and environment."""

from typing import Any

import pytest

from .matrix import SERVERS, UPSTREAMS
from .rendering import Object, Values, render_objects, select_kind, select_pods

pytestmark = pytest.mark.usefixtures("require_helm")
COMPONENTS = ("api", "ingester", "retention", "proxy", "migration")
ALL: Values = SERVERS | {"proxy": {"enabled": True, "upstreams": UPSTREAMS}}


def add_own_values(component: str, own: Values) -> Values:
    """Return the values of every service, with values for one of them."""
    return ALL | {component: ALL.get(component, {}) | own}


def find_pod(objects: list[Object], component: str) -> Object:
    """Return the specification of the pod of a component."""
    kind = "Job" if component == "migration" else "Deployment"
    name = "migrate" if component == "migration" else component
    (spec,) = [
        document["spec"]["template"]["spec"]
        for document in select_kind(objects, kind).values()
        if document["metadata"]["labels"]["app.kubernetes.io/component"] == name
    ]
    return dict(spec)


def list_others(component: str) -> list[str]:
    return [name for name in COMPONENTS if name != component]


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize(
    ("name", "for_all", "own"),
    [
        ("nodeSelector", {"disk": "fast"}, {"zone": "a"}),
        ("tolerations", [{"operator": "Exists"}], [{"key": "gpu", "operator": "Exists"}]),
        ("affinity", {"nodeAffinity": {}}, {"podAffinity": {}}),
    ],
)
def test_component_may_run_on_other_nodes(
    component: str, name: str, for_all: Any, own: Any
) -> None:
    objects = render_objects(add_own_values(component, {name: own}) | {"pods": {name: for_all}})
    assert find_pod(objects, component)[name] == own
    for other in list_others(component):
        assert find_pod(objects, other)[name] == for_all


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_may_run_as_another_user(component: str) -> None:
    own = {
        "podSecurityContext": {"runAsUser": 4711, "runAsNonRoot": False, "fsGroup": None},
        "securityContext": {"readOnlyRootFilesystem": False},
    }
    objects = render_objects(add_own_values(component, own))
    pod = find_pod(objects, component)
    assert pod["securityContext"] == {
        "runAsNonRoot": False,
        "runAsUser": 4711,
        "runAsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in pod["containers"] + pod.get("initContainers", []):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": False,
            "capabilities": {"drop": ["ALL"]},
        }
    for other in list_others(component):
        assert find_pod(objects, other)["securityContext"]["runAsUser"] == 10001


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_may_have_its_own_environment(component: str) -> None:
    mine = [{"name": "HTTPS_PROXY", "value": "http://mine:3128"}, {"name": "MINE", "value": "1"}]
    for_all = [{"name": "HTTPS_PROXY", "value": "http://all:3128"}]
    objects = render_objects(add_own_values(component, {"extraEnv": mine}) | {"extraEnv": for_all})
    variables = [
        variable
        for variable in find_pod(objects, component)["containers"][0]["env"]
        if variable in mine
    ]
    assert variables == mine
    assert for_all[0] not in find_pod(objects, component)["containers"][0]["env"]
    for other in list_others(component):
        assert for_all[0] in find_pod(objects, other)["containers"][0]["env"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_may_have_its_own_resources(component: str) -> None:
    own = {"requests": {"cpu": "3"}, "limits": {"memory": "7Gi"}}
    spec = find_pod(render_objects(add_own_values(component, {"resources": own})), component)
    resources = spec["containers"][0]["resources"]
    assert resources["limits"]["memory"] == "7Gi"
    assert resources["requests"]["cpu"] == "3"


IDS = {"runAsUser", "runAsGroup", "fsGroup"}


@pytest.mark.parametrize("nothing", [None, ""])
def test_sets_no_uid_if_none_is_given(nothing: str | None) -> None:
    none = dict.fromkeys(IDS, nothing)
    values = {
        "pods": {"podSecurityContext": none},
        "dev": {
            "enabled": True,
            **{name: {"uid": nothing} for name in ("postgres", "kafka", "s3")},
        },
        "proxy": {"enabled": True, "upstreams": UPSTREAMS},
    }
    specs = select_pods(render_objects(values))
    assert len(specs) > 8
    for name, pod in specs.items():
        assert not IDS & set(pod["spec"]["securityContext"]), name
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True, name


def test_sets_no_uid_on_openshift() -> None:
    values: Values = {
        "dev": {"enabled": True},
        "proxy": {"enabled": True, "upstreams": UPSTREAMS, "sidecar": {"enabled": True}},
    }
    objects = render_objects(values, "--api-versions=security.openshift.io/v1")
    for name, pod in select_pods(objects).items():
        assert not IDS & set(pod["spec"]["securityContext"]), name
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True, name
    patch = select_kind(objects, "ConfigMap")["store-inference-store-proxy-sidecar-patch"]
    assert "runAsUser" not in patch["data"]["patch.yaml"]
    assert "runAsNonRoot: true" in patch["data"]["patch.yaml"]


def test_given_uid_also_applies_on_openshift() -> None:
    values = SERVERS | {"pods": {"podSecurityContext": {"runAsUser": 1000660000}}}
    objects = render_objects(values, "--api-versions=security.openshift.io/v1")
    security = find_pod(objects, "api")["securityContext"]
    assert IDS & set(security) == {"runAsUser"}
    assert security["runAsUser"] == 1000660000


def test_sidecar_sets_no_uid_if_none_is_given() -> None:
    own = {"enabled": True, "securityContext": {"runAsUser": None, "runAsGroup": 7}}
    objects = render_objects(SERVERS | {"proxy": {"sidecar": own}})
    patch = select_kind(objects, "ConfigMap")["store-inference-store-proxy-sidecar-patch"]
    assert "runAsUser" not in patch["data"]["patch.yaml"]
    assert "runAsGroup: 7" in patch["data"]["patch.yaml"]
    assert "readOnlyRootFilesystem: true" in patch["data"]["patch.yaml"]
