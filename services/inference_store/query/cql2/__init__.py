"""CQL2, the filter language: its tree, text and JSON, without tables and metadata keys."""

from typing import Literal, TypeAlias

from inference_store.inference.json_text import Json, Number

from .operations import CONFORMANCE as CONFORMANCE
from .operations import OPERATIONS as OPERATIONS
from .operations import Takes
from .read_json import parse_json as parse_json
from .read_json import parse_json_text as parse_json_text
from .relative import NO_CLOCK
from .relative import Clock as Clock
from .relative import resolved_in as resolved_in
from .tree import Node as Node
from .tree import Refusal, SourceRange, error_of
from .verify import meant_by as meant_by
from .write import to_json as to_json
from .write import to_text as to_text

FilterLang: TypeAlias = Literal["cql2-text", "cql2-json"]


def parse(
    value: Json, *, lang: FilterLang | None = None, path: str = "filter", clock: Clock = NO_CLOCK
) -> Node:
    """Return the tree of a filter in either encoding: a string is text, any other value is JSON.

    With `lang` cql2-json a string is JSON text. Relative times are resolved. Raises InvalidFilter,
    NotKept.
    """
    if not isinstance(value, str) or isinstance(value, Number):
        if lang == "cql2-text":
            message = "CQL2-Text is a string; an object is cql2-json"
            raise error_of(Refusal(message, SourceRange(path), ("cql2-json",)), None)
        return parse_json(value, path=path, clock=clock)
    if lang == "cql2-json":
        return parse_json_text(value, path=path, clock=clock)
    return parse_text(value, path=path, clock=clock)


def parse_text(
    text: str, *, path: str = "filter", clock: Clock = NO_CLOCK, takes: Takes = "truth"
) -> Node:
    """Return the tree of a filter written as text; see `read_text.parse_text`."""
    # Lark is imported with the first text: an ingester reads none.
    from inference_store.query.cql2 import read_text  # noqa: PLC0415

    return read_text.parse_text(text, path=path, clock=clock, takes=takes)
