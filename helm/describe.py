"""Write the chart's README.md and values.schema.json from the comments in values.yaml.

    python helm/describe.py

The comment above a value is its line in the README. Its type follows from its default; a comment
line `@schema {…}` adds to that. Nothing that is not named is allowed. `"properties": "settings"`
stands for the services' own settings. Each component also has the values of `pods`, for it alone.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from inference_store.inference.field_docs import field_docs
from inference_store.platform.settings import GROUPS, secrets_of

CHART = Path(__file__).parent / "inference-store"
_MARK = "<!-- values -->\n"
_TYPES = {"bool": "boolean", "int": "integer", "str": "string", "seq": "array", "map": "object"}
Schema = dict[str, Any]
COMPONENTS = ("api", "ingester", "retention", "proxy", "migration")
# What only a service has, not a Job.
_SERVICES_ONLY = {"startupProbe", "livenessProbe", "readinessProbe", "podDisruptionBudget"}
_SERVICES_ONLY |= {"spread", "extraContainers", "extraInitContainers"}


@dataclass
class Value:
    """One value: where it is, what it is by default, what is said of it."""

    path: tuple[str, ...]
    default: Any
    kind: str
    text: str
    extra: Schema
    inner: list["Value"] = field(default_factory=list)

    @property
    def is_group(self) -> bool:
        """Whether it has values of its own, rather than being one."""
        return bool(self.inner)

    def schema(self) -> Schema:
        """What it may be."""
        if self.is_group:
            inner = {one.path[-1]: one.schema() for one in self.inner}
            return {"type": "object", "additionalProperties": False, "properties": inner}
        return {"type": self.kind, "description": self.text, **self._bounds(), **self.extra}

    def _bounds(self) -> Schema:
        name = self.path[-1]
        if name.lower().endswith("port"):  # of a node's 0 says: any
            return {"minimum": int(not name.lower().endswith("nodeport")), "maximum": 65535}
        if name.endswith("Seconds"):
            return {"minimum": 1}
        return {"minimum": 0} if self.kind == "integer" else {}

    def leaves(self) -> Iterator["Value"]:
        """The values themselves."""
        if not self.is_group:
            yield self
        for one in self.inner:
            yield from one.leaves()


def read(text: str) -> list[Value]:
    """Every value of a values.yaml. Raises ValueError for one that nothing is said of."""
    root = yaml.compose(text)
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("values.yaml is not a mapping")
    return list(_inside(root, text.splitlines(), ()))


def _inside(node: yaml.MappingNode, lines: list[str], path: tuple[str, ...]) -> Iterator[Value]:
    for key, found in node.value:
        here = (*path, key.value)
        text, extra = _comment(lines, key.start_mark.line)
        kind = _TYPES[found.tag.rsplit(":", 1)[1]]
        value = Value(here, yaml.safe_load(yaml.serialize(found)), kind, text, extra)
        is_group = isinstance(found, yaml.MappingNode) and bool(found.value) and not extra
        if is_group:
            value.inner = list(_inside(found, lines, here))
        elif not text:
            raise ValueError(f"values.yaml says nothing of {'.'.join(here)}")
        elif kind in {"object", "array"} and not extra:
            raise ValueError(f"{'.'.join(here)} needs an @schema: what may be in it?")
        yield value


def _comment(lines: list[str], line: int) -> tuple[str, Schema]:
    """What stands directly above a line: its words, and its schema."""
    above: list[str] = []
    while line > 0 and lines[line - 1].strip().startswith("#"):
        line -= 1
        above.insert(0, lines[line].strip().removeprefix("#").strip())
    schemas = [each.removeprefix("@schema") for each in above if each.startswith("@schema")]
    words = [each for each in above if not each.startswith("@schema")]
    extra = json.loads(schemas[0]) if schemas else {}
    if extra.get("properties") == "settings":
        extra["properties"] = _settings()
    return " ".join(words), extra


def _settings() -> dict[str, Schema]:
    """Every setting without its prefix; in place of a secret, the path of its file."""
    found: dict[str, Schema] = {}
    for group in GROUPS:
        told, secrets = field_docs(group), secrets_of(group)
        for name in group.model_fields:
            own = f"{name}_file" if name in secrets else name
            text = f"Path of a file with it: {told[name]}" if name in secrets else told[name]
            kinds = ["string"] if name in secrets else ["string", "number", "boolean"]
            found[own.upper()] = {"type": kinds, "description": text}
    return dict(sorted(found.items()))


def schema(values: list[Value]) -> str:
    """values.schema.json. `global` is Helm's own."""
    inner: Schema = {one.path[0]: one.schema() for one in values}
    for name in COMPONENTS:
        without = _SERVICES_ONLY if name == "migration" else set()
        pods = inner["pods"]["properties"].items()
        inner[name]["properties"] |= {key: of for key, of in pods if key not in without}
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart inference-store",
        "type": "object",
        "additionalProperties": False,
        "properties": {"global": {"type": "object"}, **inner},
    }
    return json.dumps(whole, indent=2) + "\n"


def readme(values: list[Value], before: str) -> str:
    """README.md with its tables of values made anew; what stands above the mark is kept."""
    groups: list[tuple[str, list[Value]]] = [("General", [])]
    for one in values:
        if one.is_group:
            groups.append((one.path[0], list(one.leaves())))
        else:
            groups[0][1].append(one)
    tables = "".join(_table(title, leaves) for title, leaves in groups)
    return before.split(_MARK, maxsplit=1)[0] + _MARK + tables


def _table(title: str, leaves: list[Value]) -> str:
    rows = "".join(f"| `{'.'.join(one.path)}` | {_shown(one)} | {one.text} |\n" for one in leaves)
    if title in COMPONENTS:
        rows += f"| `{title}.…` |  | Every value of [`pods`](#pods), for it alone. |\n"
    return f"\n### {title}\n\n| value | default | what it does |\n|---|---|---|\n{rows}"


def _shown(value: Value) -> str:
    default = value.default
    if default in ("", [], {}):
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def written() -> dict[Path, str]:
    """What both files hold when they are current."""
    values = read((CHART / "values.yaml").read_text())
    return {
        CHART / "values.schema.json": schema(values),
        CHART / "README.md": readme(values, (CHART / "README.md").read_text()),
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
