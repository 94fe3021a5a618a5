"""The chart's objects as `helm template` makes them."""

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


def cache_folder() -> Path:
    """Where helm and kubeconform lie once they are built."""
    default = Path.home() / ".cache" / "inference-store" / "cluster"
    return Path(os.environ.get("BIN") or default)


@cache
def program(name: str) -> str | None:
    """A program of this machine, or the one in the cache."""
    built = cache_folder() / name
    return str(built) if built.exists() else shutil.which(name)


class Refused(Exception):
    """Helm does not take these values; the text is what it says."""


def helm(command: str, *arguments: str, values: Values | None = None) -> str:
    """What helm says. Raises Refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values or {}, file)
        file.flush()
        done = subprocess.run(
            [str(program("helm")), command, *arguments, str(CHART), *_KUBERNETES, file.name],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


def template(values: Values, *arguments: str, name: str = "store") -> list[Object]:
    """The objects for these values. Raises Refused."""
    said = _rendered(json.dumps(values), name, arguments)
    return [one for one in yaml.safe_load_all(said) if one]


@cache
def _rendered(values: str, name: str, arguments: tuple[str, ...]) -> str:
    values_read: Values = json.loads(values)
    return helm("template", name, "--namespace", "spaces", *arguments, values=values_read)


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind, by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def pods(objects: list[Object]) -> dict[str, Object]:
    """Every pod that the objects make, by "kind/name": its metadata and spec."""
    found = {}
    for one in objects:
        name = f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] == "Pod":
            found[name] = one
        elif "template" in one.get("spec", {}):
            found[name] = one["spec"]["template"]
    return found
