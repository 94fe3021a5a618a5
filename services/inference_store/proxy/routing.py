"""Chooses a call's upstream, and whether it is captured, by its method and path alone; and observes
the call."""

import posixpath
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Final, Literal, TypeAlias, get_args
from urllib.parse import unquote

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from inference_store.platform import traces
from inference_store.platform.metrics import CALL_SECONDS, CALLS_IN_PROGRESS
from inference_store.proxy.configuration import Configuration, Rules, UpstreamEntry
from inference_store.proxy.exchange import Transport
from inference_store.proxy.protocols import Call, may_infer, recognise_call

_ESCAPE: Final = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9._~-]")
_IRREGULAR: Final = re.compile(r"%|//|/\.")


class PathPrefixes:
    """The prefixes that may precede the path of a protocol: a gateway's own path."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """`patterns` begin with a slash; `*` is any part of one segment."""
        prefixes = [re.escape(pattern.rstrip("/")).replace(r"\*", "[^/]*") for pattern in patterns]
        self._prefix = re.compile(f"(?:{'|'.join(prefixes)})(?=/)") if prefixes else None

    def readings(self, path: str) -> Iterator[str]:
        """Yield the ways in which a server may read a path (percent-escaped, no query), also
        without a prefix."""
        paths = [normalize(path)]
        # Some servers decode every escape before they route, even that of a slash.
        if "%" in paths[0]:
            paths.append(_remove_dot_segments(unquote(path)))
        for each in dict.fromkeys(paths):
            yield each
            if self._prefix is not None and (prefix := self._prefix.match(each)):
                yield each[prefix.end() :]


def normalize(path: str) -> str:
    """Return the normal form of a path (RFC 3986, section 6.2.2): escapes of unreserved characters
    decoded, others in capitals, no dot segments, no repeated slashes."""
    if _IRREGULAR.search(path) is None:
        return path

    def decode(escape: re.Match[str]) -> str:
        character = chr(int(escape[1], 16))
        return character if _UNRESERVED.match(character) else escape[0].upper()

    return _remove_dot_segments(_ESCAPE.sub(decode, path))


def _remove_dot_segments(path: str) -> str:
    normal = posixpath.normpath("/" + path.lstrip("/"))
    is_folder = path.endswith(("/", "/.", "/..")) and normal != "/"
    return f"{normal}/" if is_folder else normal


# Paths are untrusted: remember as many as a server has, not more.
_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 512
_NO_RULES: Final = Rules()
# Other calls about a model go to the model's upstream.
_MODEL: Final = re.compile(r"/v[12]/(?:repository/)?models/([^/:]+)")
_NO_PREFIXES: Final = PathPrefixes()


@dataclass(frozen=True, slots=True)
class Route:
    """The upstream of a call. `call` is None if it only passes through."""

    upstream: UpstreamEntry
    call: Call | None = None
    rules: Rules = _NO_RULES
    model: str | None = None
    """The model's name; None if neither the path nor the message names it."""
    version: str | None = None
    is_unrecognised: bool = False
    """True if it may be an inference, but no protocol of the upstream recognises it."""


class Routing:
    """Routes of one configuration."""

    def __init__(self, configuration: Configuration, prefixes: PathPrefixes = _NO_PREFIXES) -> None:
        self._configuration = configuration
        self._prefixes = prefixes
        self._protocols = {name for entry in configuration.upstreams for name in entry.protocols}
        self._remembered = lru_cache(_REMEMBERED)(self._route)
        for transport in get_args(Transport):
            count = partial(_in_progress.__getitem__, transport)
            CALLS_IN_PROGRESS.labels(transport).set_function(count)

    def route(
        self,
        transport: Transport,
        method: str,
        path: str,
        model: str | None = None,
        version: str | None = None,
    ) -> Route:
        """Return the route of a call. `model`, `version`: those in the message, if the path names
        none."""
        is_long = len(path) + len(model or "") + len(version or "") > _LONGEST_REMEMBERED
        find = self._route if is_long else self._remembered
        return find(transport, method, path, model, version)

    def _route(
        self, transport: Transport, method: str, path: str, model: str | None, version: str | None
    ) -> Route:
        paths = list(self._prefixes.readings(path)) if transport == "rest" else [path]
        call = recognise_call(self._protocols, transport, method, *paths)
        model_name = (call and call.model) or model
        if model_name is None:
            match = next(filter(None, map(_MODEL.search, paths)), None)
            model_name = unquote(match[1]) if match else None
        upstream = self._configuration.upstream(model_name)
        if upstream.cloud_events is not None:  # there are no others
            return Route(upstream)
        if call is None or call.protocol.name not in upstream.protocols:
            call = recognise_call(upstream.protocols, transport, method, *paths)
        if call is None:
            return Route(upstream, is_unrecognised=may_infer(transport, method, paths))
        version = call.version or version or None
        rules = self._configuration.rules(upstream.name, model_name or upstream.name, version)
        if not rules.capture:
            return Route(upstream)
        return Route(upstream, call, rules, model_name, version)


# A call as the operator sees it: in progress, then its time and outcome, and a span if it is
# traced.
#
# The values of labels and spans are bounded: protocols are ours, upstreams the configuration's;
# they contain no path, no id and no model. The request is forwarded unchanged: the model server
# gets the caller's `traceparent`, not the span's.

Outcome: TypeAlias = Literal["ok", "refused", "failed", "gone"]
"""`refused`: the caller's mistake; `failed`: the model server's, or it gave no whole answer;
`gone`: the caller went away before it had the answer."""
Describe: TypeAlias = Callable[[], tuple[traces.Attributes, Mapping[str, str]]]
"""Returns a span's attributes, and the headers of the caller's context; called if the call is
traced."""

TRACE_HEADERS: Final = ("traceparent", "tracestate")
# looking up a series takes longer than counting
_timed = cache(CALL_SECONDS.labels)
_in_progress: Final = Counter[Transport]()
_STATUS: Final[Mapping[Transport, str]] = {
    "rest": "http.response.status_code",
    "grpc": "rpc.grpc.status_code",
}


class ObservedCall:
    """One call to an upstream, from here to `end`. Only calls that are captured have a span."""

    __slots__ = ("_began", "_protocol", "_transport", "_upstream", "span")

    def __init__(self, transport: Transport, route: Route, describe: Describe) -> None:
        self._transport, self._upstream = transport, route.upstream.name
        passed = "unrecognised" if route.is_unrecognised else "none"
        self._protocol = passed if route.call is None else route.call.protocol.name
        self._began = time.perf_counter()
        _in_progress[transport] += 1
        self.span: Span = INVALID_SPAN
        if route.call is not None and traces.is_on():
            attributes, headers = describe()
            ours = {
                "inference_store.protocol": self._protocol,
                "inference_store.upstream": self._upstream,
            }
            name = f"{self._protocol} {route.call.kind}"
            every: traces.Attributes = {**attributes, **ours}
            self.span = traces.begin(name, SpanKind.SERVER, every, headers=headers)

    def end(self, outcome: Outcome, status: int | None) -> None:
        """End the call; call it once. `status`: the model server's, by HTTP or gRPC; None if there
        is none."""
        _in_progress[self._transport] -= 1
        seconds = time.perf_counter() - self._began
        _timed(self._protocol, self._upstream, outcome).observe(seconds)
        if self.span is INVALID_SPAN:
            return
        self.span.set_attribute("inference_store.outcome", outcome)
        if status is not None:
            self.span.set_attribute(_STATUS[self._transport], status)
        if outcome == "failed":
            has_failure_status = status is not None and (self._transport == "grpc" or status >= 500)
            traces.failed(self.span, str(status) if has_failure_status else "no_answer")
        self.span.end()
