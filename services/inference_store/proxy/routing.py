"""Which upstream a call goes to, and whether it is captured: by its method and path alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from .configuration import Configuration, UpstreamEntry
from .exchange import Transport
from .paths import PathPrefixes
from .protocols import Call, may_infer, recognised
from .rules import Rules

# Paths come from strangers: as many are remembered as a server has, not more.
_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 512
_NO_RULES: Final = Rules()
# What else is asked about a model goes where the model is.
_MODEL: Final = re.compile(r"/v[12]/(?:repository/)?models/([^/:]+)")
_NO_PREFIXES: Final = PathPrefixes()


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call goes. `call` None: it only passes through."""

    upstream: UpstreamEntry
    call: Call | None = None
    rules: Rules = _NO_RULES
    model: str = ""
    """The model's name; where neither path nor configuration says it, the upstream's."""
    is_unrecognised: bool = False
    """It may be an inference, and no protocol of the upstream knows it."""


class Routing:
    """Routes of one configuration."""

    def __init__(self, configuration: Configuration, prefixes: PathPrefixes = _NO_PREFIXES) -> None:
        self._configuration = configuration
        self._prefixes = prefixes
        self._spoken = {name for each in configuration.upstreams for name in each.protocols}
        self._remembered = lru_cache(_REMEMBERED)(self._route)

    def route(
        self,
        transport: Transport,
        method: str,
        path: str,
        model: str | None = None,
        version: str | None = None,
    ) -> Route:
        """`model`, `version`: as the message says them, where the path does not."""
        if len(path) + len(model or "") + len(version or "") > _LONGEST_REMEMBERED:
            return self._route(transport, method, path, model, version)
        return self._remembered(transport, method, path, model, version)

    def _route(
        self,
        transport: Transport,
        method: str,
        path: str,
        model: str | None = None,
        version: str | None = None,
    ) -> Route:
        paths = list(self._prefixes.readings(path)) if transport == "rest" else [path]
        found = recognised(self._spoken, transport, method, *paths)
        named = (found.model if found is not None else None) or model or _named(paths)
        upstream = self._configuration.upstream(named)
        if found is None or found.protocol.name not in upstream.protocols:
            found = recognised(upstream.protocols, transport, method, *paths)
        if found is None:
            return Route(upstream, is_unrecognised=may_infer(transport, method, paths))
        name = named or upstream.name
        rules = self._configuration.rules(upstream.name, name, found.version or version or None)
        if named is None and rules.capture:
            rules = replace(
                rules,
                by_name=self._configuration.named_rules(upstream.name),
                if_unnamed=self._configuration.redactions_of(upstream.name),
            )
        return Route(upstream, found, rules, name) if rules.capture else Route(upstream)


def _named(paths: Sequence[str]) -> str | None:
    found = next((found for path in paths if (found := _MODEL.search(path))), None)
    return unquote(found[1]) if found else None
