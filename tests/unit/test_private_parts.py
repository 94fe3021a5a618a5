"""No part of a library that may change without a word changes unnoticed."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.private_parts import PRIVATE_PARTS, PUBLIC

ROOT = Path(__file__).parents[2] / "services" / "inference_store"
LISTED = {
    name for parts in PRIVATE_PARTS.values() for names in parts.names.values() for name in names
}


@pytest.mark.parametrize("library", PRIVATE_PARTS)
def test_a_new_version_of_a_library_is_looked_at(library: str) -> None:
    assert version(library) == PRIVATE_PARTS[library].version


@pytest.mark.parametrize("library", PRIVATE_PARTS)
def test_every_part_is_there(library: str) -> None:
    for location, names in PRIVATE_PARTS[library].names.items():
        module, _, owner = location.partition(":")
        imported = import_module(module)
        within = getattr(imported, owner) if owner else imported
        for name in names:
            assert hasattr(within, name) or f"self.{name}" in read_source(within), (location, name)


def read_source(within: object) -> str:
    """Return a class's source with that of its bases: ours may replace a library's."""
    classes = inspect.getmro(within) if inspect.isclass(within) else ()
    return "".join(read_class_source(alias) for alias in classes)


def read_class_source(class_: type) -> str:
    """Return its source; "" for a class written in C, as `typing.Generic` is since Python 3.12."""
    try:
        return inspect.getsource(class_)
    except (OSError, TypeError):
        return ""


def test_every_private_part_that_is_used_is_listed() -> None:
    assert set(list_foreign_names()) - LISTED - PUBLIC == set()


@cache
def parse_modules() -> Sequence[ast.Module]:
    return [ast.parse(path.read_text()) for path in ROOT.rglob("*.py")]


def list_foreign_names() -> Iterator[str]:
    """Yield names with an underscore that none of our modules defines, and private imports."""
    own = set(list_defined_names())
    for tree in parse_modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
                yield node.attr
            if isinstance(node, ast.ImportFrom) and not is_ours(node):
                hidden = any(map(is_private, (node.module or "").split(".")))
                yield from (alias.name for alias in node.names if hidden or is_private(alias.name))


def list_defined_names() -> Iterator[str]:
    for tree in parse_modules():
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield name
                case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                    yield name
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    yield name


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_ours(node: ast.ImportFrom) -> bool:
    return node.level > 0 or (node.module or "").startswith("inference_store")
