"""YAML in which every value knows its line, so that a mistake is named by where it stands."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from inference_store.platform.settings import WrongSetting

MOST_BYTES = 1 << 20
Place = Sequence[int | str]
"""Names and indexes from the root, as pydantic's `loc`."""


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
        self._root, self.value = self._parsed(text)

    def _parsed(self, text: bytes) -> tuple[yaml.Node | None, Any]:
        loader = None
        try:
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            for name, line in _repeated(root):
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

    def wrong(self, place: Place, message: str) -> str:
        """A sentence about the value at a place, or about the nearest that is there."""
        named = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
        return f"{self._path}, line {self._line(place)}: {named.lstrip('.') or 'it'}: {message}"

    def _line(self, place: Place) -> int:
        node, line = self._root, 1
        for part in place:
            found = _child(node, part)
            if found is None:
                break
            line, node = found
        return line


def _child(node: yaml.Node | None, part: int | str) -> tuple[int, yaml.Node] | None:
    """Where a member stands, and the member."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        value = node.value[part]
        return value.start_mark.line + 1, value
    return None


def _repeated(node: yaml.Node | None) -> Iterator[tuple[str, int]]:
    """Names that a mapping has twice, of which YAML would keep the last without a word."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    yield key.value, key.start_mark.line + 1
                seen.add(key.value)
            yield from _repeated(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated(value)
