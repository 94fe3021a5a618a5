"""Which upstream a call goes to, and whether it is captured: by its method and path alone."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from .configuration import Configuration, UpstreamEntry
from .exchange import Transport
from .protocols import Call, recognised
from .rules import Rules

# Paths come from strangers: as many are remembered as a server has, not more.
_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 512
_NO_RULES: Final = Rules()
# What else is asked about a model goes where the model is.
_MODEL: Final = re.compile(r"/v[12]/(?:repository/)?models/([^/:]+)")


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call goes. `call` None: it only passes through."""

    upstream: UpstreamEntry
    call: Call | None = None
    rules: Rules = _NO_RULES
    model: str = ""
    """The model's name; where neither path nor configuration says it, the upstream's."""


class Routing:
    """Routes of one configuration."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
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
        found = recognised(self._spoken, transport, method, path)
        named = (found.model if found is not None else None) or model or _named(path)
        upstream = self._configuration.upstream(named)
        if found is None or found.protocol.name not in upstream.protocols:
            found = recognised(upstream.protocols, transport, method, path)
        if found is None:
            return Route(upstream)
        name = named or upstream.name
        rules = self._configuration.rules(upstream.name, name, found.version or version or None)
        if named is None and rules.capture:
            rules = replace(
                rules,
                by_name=self._configuration.named_rules(upstream.name),
                if_unnamed=self._configuration.redactions_of(upstream.name),
            )
        return Route(upstream, found, rules, name) if rules.capture else Route(upstream)


def _named(path: str) -> str | None:
    found = _MODEL.search(path)
    return unquote(found[1]) if found else None
