"""The objects of the chart, rendered by `helm template`."""

import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "inference-store"
_KUBERNETES = ("--kube-version", "1.33.0", "--values")
Object = dict[str, Any]
Values = dict[str, Any]


def find_cache_folder() -> Path:
    """Return the folder of helm and kubeconform, once they are built."""
    default = Path.home() / ".cache" / "inference-store" / "cluster"
    return Path(os.environ.get("BIN") or default)


@cache
def find_program(name: str) -> str | None:
    """Return the path of a program in the cache or on this machine, None without one."""
    built = find_cache_folder() / name
    return str(built) if built.exists() else shutil.which(name)


class Refused(Exception):
    """Helm does not accept these values; the text is its error."""


def helm(command: str, *arguments: str, values: Values | None = None) -> str:
    """Return the output of helm. Raises Refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values or {}, file)
        file.flush()
        done = subprocess.run(
            [str(find_program("helm")), command, *arguments, str(CHART), *_KUBERNETES, file.name],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


def render_objects(values: Values, *arguments: str, name: str = "store") -> list[Object]:
    """Render the objects for values. Raises Refused."""
    output = _render(json.dumps(values), name, arguments)
    return [document for document in yaml.safe_load_all(output) if document]


@cache
def _render(values: str, name: str, arguments: tuple[str, ...]) -> str:
    values_read: Values = json.loads(values)
    return helm("template", name, "--namespace", "spaces", *arguments, values=values_read)


def select_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """Return the objects of a kind by name."""
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
