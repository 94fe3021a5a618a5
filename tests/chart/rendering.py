"""The objects of the chart, rendered by `helm template` once for each set of values."""

import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers.versions import MissingServer

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "inference-store"
# The first part of the names of a release's objects.
FULL = "store-inference-store"
_REQUIRE_HELM = "INFERENCE_STORE_REQUIRE_HELM"
_KUBERNETES = ("--kube-version", "1.33.0", "--values")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Object = dict[str, Any]
Values = dict[str, Any]


def find_cache_folder() -> Path:
    default = Path.home() / ".cache" / "inference-store" / "cluster"
    return Path(os.environ.get("BIN") or default)


@cache
def find_program(name: str) -> str | None:
    """Return the path of a program in the cache or on this machine, None without one."""
    built = find_cache_folder() / name
    return str(built) if built.exists() else shutil.which(name)


def find_helm() -> Path:
    """Return helm, if kubeconform is there too. Raises MissingServer, or fails in `make chart`."""
    missing = [name for name in ("helm", "kubeconform") if find_program(name) is None]
    reason = f"{' and '.join(missing)} not installed: `make chart` builds them with Go"
    if missing and os.environ.get(_REQUIRE_HELM) == "1":
        pytest.fail(reason, pytrace=False)
    if missing:
        raise MissingServer(reason)
    return Path(str(find_program("helm")))


class Refused(Exception):
    """Helm does not accept these values; the text is its error."""


def helm(command: str, *arguments: str, values: Values, chart: Path = CHART) -> str:
    """Return the output of helm. Raises Refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        done = subprocess.run(
            [str(find_program("helm")), command, *arguments, str(chart), *_KUBERNETES, file.name],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


def render_objects(
    values: Values, *arguments: str, name: str = "store", chart: Path = CHART
) -> list[Object]:
    """Render the objects for values; who gets them does not change them. Raises Refused."""
    return _render(json.dumps(values), name, arguments, chart)


@cache
def _render(values: str, name: str, arguments: tuple[str, ...], chart: Path) -> list[Object]:
    options = (name, "--namespace", "spaces", *arguments)
    output = helm("template", *options, values=json.loads(values), chart=chart)
    return [document for document in yaml.load_all(output, _LOADER) if document]


def select_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    return {
        document["metadata"]["name"]: document for document in objects if document["kind"] == kind
    }


def select_pods(objects: list[Object]) -> dict[str, Object]:
    """Return the metadata and spec of every pod that the objects make, by "kind/name"."""
    specs = {}
    for document in objects:
        name = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] == "Pod":
            specs[name] = document
        elif "template" in document.get("spec", {}):
            specs[name] = document["spec"]["template"]
    return specs


def list_containers(pod: Object) -> list[Object]:
    """Return the containers of a pod, with those that run before them."""
    return [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]


def check_restricted(container: Object) -> None:
    closed = container["securityContext"]
    assert closed["allowPrivilegeEscalation"] is False, container
    assert closed["capabilities"] == {"drop": ["ALL"]}, container
    assert closed["readOnlyRootFilesystem"] is True, container
    assert container["resources"]["limits"]["memory"], container


def check_fields(objects: list[Object], *skipped: str) -> None:
    """Check that Kubernetes knows every field, except in objects of the skipped kinds."""
    schemas = f"{find_cache_folder()}/schemas/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    options = ("-strict", "-summary", "-skip", ",".join(skipped), "-schema-location", schemas)
    done = subprocess.run(
        [str(find_program("kubeconform")), *options],
        input="\n---\n".join(json.dumps(document) for document in objects),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    foreign = [document for document in objects if document["kind"] in skipped]
    assert f"Skipped: {len(foreign)}" in done.stdout
