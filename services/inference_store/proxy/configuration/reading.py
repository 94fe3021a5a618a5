"""From the file, or from the environment alone, to what the proxy is told."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from inference_store.inference.nearest import nearest
from inference_store.proxy.rules import NamedRules, Redaction, Rules

from .document import Document, WrongConfiguration
from .entries import ModelEntry, UpstreamEntry

_EVERYTHING = ModelEntry()
_REMEMBERED = 1024
_LONGEST_REMEMBERED = 512


class _File(BaseModel):
    """The root of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    upstreams: Annotated[tuple[UpstreamEntry, ...], Field(min_length=1)]
    models: tuple[ModelEntry, ...] = ()


class Configuration:
    """Which upstream a call goes to, and how it is captured."""

    def __init__(
        self, upstreams: Sequence[UpstreamEntry], models: Sequence[ModelEntry] = ()
    ) -> None:
        self.upstreams = tuple(upstreams)
        self.models = tuple(models)
        # names come from strangers: as many are remembered as a server has, not more
        self._remembered = lru_cache(_REMEMBERED)(self._rules)

    def upstream(self, model: str | None) -> UpstreamEntry:
        """The first that serves the model; else the first of all, which says that it does not."""
        return next((each for each in self.upstreams if each.serves(model)), self.upstreams[0])

    def rules(self, upstream: str, model: str, version: str | None) -> Rules:
        """How a model's exchanges are captured at an upstream."""
        if len(model) + len(version or "") > _LONGEST_REMEMBERED:
            return self._rules(upstream, model, version)
        return self._remembered(upstream, model, version)

    def redactions_of(self, upstream: str) -> tuple[Redaction, ...]:
        """What is taken out for any of an upstream's models; what is not captured at all counts
        as an input that is dropped."""
        here = [each for each in self.models if each.upstream in {None, upstream}]
        every = [redaction for each in here for redaction in each.rules(None).redactions]
        if not all(each.capture for each in here):
            every.append(Redaction(what="input"))
        return tuple(dict.fromkeys(every))

    def _rules(self, upstream: str, model: str, version: str | None) -> Rules:
        found = (each for each in self.models if each.matches(upstream, model, version))
        return next(found, _EVERYTHING).rules(self._dialect(upstream))

    def named_rules(self, upstream: str) -> tuple[NamedRules, ...]:
        """The rules of every model of an upstream, for whoever learns its name later."""
        dialect = self._dialect(upstream)
        entries = (each for each in self.models if each.upstream in {None, upstream})
        return tuple(
            NamedRules(each.model, each.version, each.rules(dialect))
            for each in (*entries, _EVERYTHING)
        )

    def _dialect(self, upstream: str) -> Literal["mlserver", "triton"] | None:
        return next(each.dialect for each in self.upstreams if each.name == upstream)


def configuration_of(
    path: Path, *, protocols: Collection[str], has_key: bool = True
) -> Configuration:
    """The file's configuration. `has_key`: there is one for the hashes of redactions.

    Raises WrongConfiguration, which names each mistake's line.
    """
    document = Document(path)
    if not isinstance(document.value, dict):
        raise WrongConfiguration(document.wrong((), "expected `upstreams:` and `models:`"))
    try:
        read = _File.model_validate(document.value)
    except ValidationError as exc:
        errors = _own(exc.errors(include_url=False, include_input=False))
        said = (document.wrong(each["loc"], _message(each)) for each in errors)
        raise WrongConfiguration("\n".join(said)) from None
    wrong = [
        *_unknown_protocols(read, document, protocols),
        *_unknown_upstreams(read, document),
        *_repeated_names(read, document),
        *(() if has_key else _hashes(read, document)),
    ]
    if wrong:
        raise WrongConfiguration("\n".join(wrong))
    return Configuration(read.upstreams, read.models)


def configuration_of_one(
    url: str | None, grpc: str | None, names: Collection[str], *, protocols: Collection[str]
) -> Configuration:
    """Of one upstream, without a file. Raises WrongConfiguration, which names each mistake."""
    known = ", ".join(sorted(protocols))
    wrong = [
        f"INFERENCE_STORE_PROXY_PROTOCOLS: there is no protocol {name!r}; known are {known}"
        for name in names
        if name not in protocols
    ]
    try:
        entry = UpstreamEntry(name="upstream", url=url, grpc=grpc, protocols=tuple(names))
    except ValidationError as exc:
        wrong += map(_of_setting, exc.errors(include_url=False, include_input=False))
    if wrong:
        raise WrongConfiguration("\n".join(wrong))
    return Configuration([entry])


def _of_setting(error: ErrorDetails) -> str:
    names = {"grpc": "PROXY_UPSTREAM_GRPC", "protocols": "PROXY_PROTOCOLS"}
    name = names.get(str(error["loc"][0]) if error["loc"] else "", "PROXY_UPSTREAM")
    return f"INFERENCE_STORE_{name}: {_message(error)}"


def _own(errors: Sequence[ErrorDetails]) -> Sequence[ErrorDetails]:
    """Without those that only follow from a mistake inside: a list whose entries are wrong is
    also too short."""
    places = [each["loc"] for each in errors]
    return [each for each in errors if not any(_is_inside(place, each["loc"]) for place in places)]


def _is_inside(place: Sequence[int | str], outer: Sequence[int | str]) -> bool:
    return len(place) > len(outer) and tuple(place[: len(outer)]) == tuple(outer)


def _message(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return f"there is no such name here{_known(error['loc'])}"
    return error["msg"].removeprefix("Value error, ")


def _known(place: Sequence[int | str]) -> str:
    """The names that would be known where one was not."""
    entry: type[BaseModel] | None = _File
    for part in place[:-1]:
        if isinstance(part, str) and entry is not None:
            entry = _entry_of(entry, part)
    if entry is None:
        return ""
    near = nearest(str(place[-1]), tuple(entry.model_fields))
    return f"; the nearest are {', '.join(near)}" if near else ""


def _entry_of(entry: type[BaseModel], name: str) -> type[BaseModel] | None:
    """What kind of entry stands under a name."""
    annotation = entry.model_fields[name].annotation
    inside = (annotation, *getattr(annotation, "__args__", ()))
    found = (each for each in inside if isinstance(each, type) and issubclass(each, BaseModel))
    return next(found, None)


def _unknown_protocols(
    read: _File, document: Document, protocols: Collection[str]
) -> Sequence[str]:
    known = ", ".join(sorted(protocols))
    return [
        document.wrong(
            ("upstreams", place, "protocols", at),
            f"there is no protocol {name!r}; known are {known}",
        )
        for place, upstream in enumerate(read.upstreams)
        for at, name in enumerate(upstream.protocols)
        if name not in protocols
    ]


def _unknown_upstreams(read: _File, document: Document) -> Sequence[str]:
    known = {each.name for each in read.upstreams}
    return [
        document.wrong(
            ("models", place, "upstream"),
            f"there is no upstream {each.upstream!r}; known are {', '.join(sorted(known))}",
        )
        for place, each in enumerate(read.models)
        if each.upstream not in {None, *known}
    ]


def _repeated_names(read: _File, document: Document) -> Sequence[str]:
    names = [each.name for each in read.upstreams]
    return [
        document.wrong(("upstreams", place, "name"), f"there are two upstreams {name!r}")
        for place, name in enumerate(names)
        if name in names[:place]
    ]


def _hashes(read: _File, document: Document) -> Sequence[str]:
    return [
        document.wrong(
            ("models", place, "redactions", at),
            "a hash needs a key: set INFERENCE_STORE_PROXY_REDACTION_KEY, or drop the value",
        )
        for place, each in enumerate(read.models)
        for at, redaction in enumerate(each.redactions)
        if redaction.how == "hash"
    ]
