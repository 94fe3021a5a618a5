"""YAML in which every value has its line, so that an error names it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from inference_store.platform.settings import WrongSetting

MOST_BYTES = 1 << 20
Location = Sequence[int | str]
"""Names and indexes from the root, like pydantic's `loc`."""


class WrongConfiguration(WrongSetting):
    """The file cannot be used; the text names it, the line and the remedy."""


class Document:
    """One file, read. Raises WrongConfiguration."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = path.read_bytes()
        except OSError as exc:
            raise WrongConfiguration(f"{path} cannot be read: {exc.strerror}") from None
        if len(text) > MOST_BYTES:
            raise WrongConfiguration(f"{path} has more than {MOST_BYTES:,} bytes")
        self._root, self.value = self._parse(text)

    def _parse(self, text: bytes) -> tuple[yaml.Node | None, Any]:
        loader = None
        try:
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            for name, line in _find_repeated(root):
                raise WrongConfiguration(f"{self._path}, line {line}: {name!r} is there twice")
            return root, None if root is None else loader.construct_document(root)
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            where = f", line {mark.line + 1}" if mark else ""
            raise WrongConfiguration(f"{self._path}{where}: {exc.problem or exc.context}") from None
        except (yaml.YAMLError, RecursionError, ValueError) as exc:
            if isinstance(exc, WrongConfiguration):
                raise
            raise WrongConfiguration(f"{self._path} is not YAML: {exc}") from None
        finally:
            if loader is not None:
                loader.dispose()

    def describe_error(self, location: Location, message: str) -> str:
        """Return a sentence about the value at a location, or about the nearest one that exists."""
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
        return (
            f"{self._path}, line {self._find_line(location)}: {name.lstrip('.') or 'it'}: {message}"
        )

    def _find_line(self, location: Location) -> int:
        node, line = self._root, 1
        for part in location:
            child = _find_child(node, part)
            if child is None:
                break
            line, node = child
        return line


def _find_child(node: yaml.Node | None, part: int | str) -> tuple[int, yaml.Node] | None:
    """Return a member and its line."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        value = node.value[part]
        return value.start_mark.line + 1, value
    return None


def _find_repeated(node: yaml.Node | None) -> Iterator[tuple[str, int]]:
    """Yield names that a mapping has twice, with their lines: YAML would keep the last without an
    error."""
    if isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in names:
                    yield key.value, key.start_mark.line + 1
                names.add(key.value)
            yield from _find_repeated(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _find_repeated(value)
