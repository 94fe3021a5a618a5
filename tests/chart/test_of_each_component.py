"""What each component may have of its own: where it runs, as whom, with what environment."""

from typing import Any

import pytest

from .matrix import SERVERS, UPSTREAMS
from .rendering import Object, Values, of_kind, pods, template

pytestmark = pytest.mark.usefixtures("helm_is_here")
COMPONENTS = ("api", "ingester", "retention", "proxy", "migration")
ALL: Values = SERVERS | {"proxy": {"enabled": True, "upstreams": UPSTREAMS}}


def with_own(component: str, own: Values) -> Values:
    """The values of every service, and of one of them what is its own."""
    return ALL | {component: ALL.get(component, {}) | own}


def pod_of(objects: list[Object], component: str) -> Object:
    """The specification of a component's pod."""
    kind = "Job" if component == "migration" else "Deployment"
    name = "migrate" if component == "migration" else component
    (found,) = [
        one["spec"]["template"]["spec"]
        for one in of_kind(objects, kind).values()
        if one["metadata"]["labels"]["app.kubernetes.io/component"] == name
    ]
    return dict(found)


def others(component: str) -> list[str]:
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
def test_it_may_run_elsewhere(component: str, name: str, for_all: Any, own: Any) -> None:
    objects = template(with_own(component, {name: own}) | {"pods": {name: for_all}})
    assert pod_of(objects, component)[name] == own
    for other in others(component):
        assert pod_of(objects, other)[name] == for_all


@pytest.mark.parametrize("component", COMPONENTS)
def test_it_may_run_as_somebody_else(component: str) -> None:
    own = {
        "podSecurityContext": {"runAsUser": 4711, "runAsNonRoot": False, "fsGroup": None},
        "securityContext": {"readOnlyRootFilesystem": False},
    }
    objects = template(with_own(component, own))
    pod = pod_of(objects, component)
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
    for other in others(component):
        assert pod_of(objects, other)["securityContext"]["runAsUser"] == 10001


@pytest.mark.parametrize("component", COMPONENTS)
def test_it_may_have_environment_of_its_own(component: str) -> None:
    mine = [{"name": "HTTPS_PROXY", "value": "http://mine:3128"}, {"name": "MINE", "value": "1"}]
    for_all = [{"name": "HTTPS_PROXY", "value": "http://all:3128"}]
    objects = template(with_own(component, {"extraEnv": mine}) | {"extraEnv": for_all})
    given = [one for one in pod_of(objects, component)["containers"][0]["env"] if one in mine]
    assert given == mine
    assert for_all[0] not in pod_of(objects, component)["containers"][0]["env"]
    for other in others(component):
        assert for_all[0] in pod_of(objects, other)["containers"][0]["env"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_it_may_have_resources_of_its_own(component: str) -> None:
    own = {"requests": {"cpu": "3"}, "limits": {"memory": "7Gi"}}
    found = pod_of(template(with_own(component, {"resources": own})), component)
    resources = found["containers"][0]["resources"]
    assert resources["limits"]["memory"] == "7Gi"
    assert resources["requests"]["cpu"] == "3"


IDS = {"runAsUser", "runAsGroup", "fsGroup"}


@pytest.mark.parametrize("nothing", [None, ""])
def test_no_uid_is_fixed_where_none_is_wanted(nothing: str | None) -> None:
    none = dict.fromkeys(IDS, nothing)
    values = {
        "pods": {"podSecurityContext": none},
        "dev": {
            "enabled": True,
            **{name: {"uid": nothing} for name in ("postgres", "kafka", "s3")},
        },
        "proxy": {"enabled": True, "upstreams": UPSTREAMS},
    }
    found = pods(template(values))
    assert len(found) > 8
    for name, pod in found.items():
        assert not IDS & set(pod["spec"]["securityContext"]), name
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True, name


def test_no_uid_is_fixed_on_openshift() -> None:
    values: Values = {
        "dev": {"enabled": True},
        "proxy": {"enabled": True, "upstreams": UPSTREAMS, "sidecar": {"enabled": True}},
    }
    objects = template(values, "--api-versions=security.openshift.io/v1")
    for name, pod in pods(objects).items():
        assert not IDS & set(pod["spec"]["securityContext"]), name
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True, name
    patch = of_kind(objects, "ConfigMap")["store-inference-store-proxy-sidecar-patch"]
    assert "runAsUser" not in patch["data"]["patch.yaml"]
    assert "runAsNonRoot: true" in patch["data"]["patch.yaml"]


def test_what_is_asked_for_holds_on_openshift_too() -> None:
    values = SERVERS | {"pods": {"podSecurityContext": {"runAsUser": 1000660000}}}
    objects = template(values, "--api-versions=security.openshift.io/v1")
    found = pod_of(objects, "api")["securityContext"]
    assert IDS & set(found) == {"runAsUser"}
    assert found["runAsUser"] == 1000660000


def test_a_sidecar_fixes_no_uid_where_none_is_wanted() -> None:
    own = {"enabled": True, "securityContext": {"runAsUser": None, "runAsGroup": 7}}
    objects = template(SERVERS | {"proxy": {"sidecar": own}})
    patch = of_kind(objects, "ConfigMap")["store-inference-store-proxy-sidecar-patch"]
    assert "runAsUser" not in patch["data"]["patch.yaml"]
    assert "runAsGroup: 7" in patch["data"]["patch.yaml"]
    assert "readOnlyRootFilesystem: true" in patch["data"]["patch.yaml"]
