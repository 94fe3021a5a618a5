"""Reads the proxy's configuration from a file, or from the environment."""

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
    """The upstreams and the rules of a proxy."""

    def __init__(
        self, upstreams: Sequence[UpstreamEntry], models: Sequence[ModelEntry] = ()
    ) -> None:
        self.upstreams = tuple(upstreams)
        self.models = tuple(models)
        # names are untrusted: remember as many as a server has, not more
        self._remembered = lru_cache(_REMEMBERED)(self._rules)

    def upstream(self, model: str | None) -> UpstreamEntry:
        """Return the first upstream that serves the model; else the first of all, which answers
        that it does not."""
        return next((entry for entry in self.upstreams if entry.serves(model)), self.upstreams[0])

    def rules(self, upstream: str, model: str, version: str | None) -> Rules:
        """Return the rules of a model's exchanges at an upstream."""
        if len(model) + len(version or "") > _LONGEST_REMEMBERED:
            return self._rules(upstream, model, version)
        return self._remembered(upstream, model, version)

    def list_redactions(self, upstream: str) -> tuple[Redaction, ...]:
        """Return the redactions of all of an upstream's models; a model that is not captured counts
        as one whose input is dropped."""
        entries = [entry for entry in self.models if entry.upstream in {None, upstream}]
        redactions = [redaction for entry in entries for redaction in entry.rules(None).redactions]
        if not all(entry.capture for entry in entries):
            redactions.append(Redaction(what="input"))
        return tuple(dict.fromkeys(redactions))

    def _rules(self, upstream: str, model: str, version: str | None) -> Rules:
        entries = (entry for entry in self.models if entry.matches(upstream, model, version))
        return next(entries, _EVERYTHING).rules(self._dialect(upstream))

    def named_rules(self, upstream: str) -> tuple[NamedRules, ...]:
        """Return the rules of every model of an upstream, to choose from when the name is known."""
        dialect = self._dialect(upstream)
        entries = (entry for entry in self.models if entry.upstream in {None, upstream})
        return tuple(
            NamedRules(entry.model, entry.version, entry.rules(dialect))
            for entry in (*entries, _EVERYTHING)
        )

    def _dialect(self, upstream: str) -> Literal["mlserver", "triton"] | None:
        return next(entry.dialect for entry in self.upstreams if entry.name == upstream)


def read_configuration_file(
    path: Path, *, protocols: Collection[str], has_key: bool = True
) -> Configuration:
    """Return the configuration in a file. `has_key`: there is a key for the hashes of redactions.

    Raises WrongConfiguration, which names each mistake's line.
    """
    document = Document(path)
    if not isinstance(document.value, dict):
        raise WrongConfiguration(document.describe_error((), "expected `upstreams:` and `models:`"))
    try:
        file = _File.model_validate(document.value)
    except ValidationError as exc:
        errors = _remove_consequences(exc.errors(include_url=False, include_input=False))
        messages = (
            document.describe_error(error["loc"], _describe_error(error)) for error in errors
        )
        raise WrongConfiguration("\n".join(messages)) from None
    mistakes = [
        *_unknown_protocols(file, document, protocols),
        *_unknown_upstreams(file, document),
        *_repeated_names(file, document),
        *(() if has_key else _hashes_without_key(file, document)),
    ]
    if mistakes:
        raise WrongConfiguration("\n".join(mistakes))
    return Configuration(file.upstreams, file.models)


def build_configuration(
    url: str | None, grpc: str | None, names: Collection[str], *, protocols: Collection[str]
) -> Configuration:
    """Return the configuration of one upstream, without a file. Raises WrongConfiguration, which
    names each mistake."""
    known_names = ", ".join(sorted(protocols))
    mistakes = [
        f"INFERENCE_STORE_PROXY_PROTOCOLS: there is no protocol {name!r}; known are {known_names}"
        for name in names
        if name not in protocols
    ]
    try:
        entry = UpstreamEntry(name="upstream", url=url, grpc=grpc, protocols=tuple(names))
    except ValidationError as exc:
        mistakes += map(_describe_setting_error, exc.errors(include_url=False, include_input=False))
    if mistakes:
        raise WrongConfiguration("\n".join(mistakes))
    return Configuration([entry])


def _describe_setting_error(error: ErrorDetails) -> str:
    names = {"grpc": "PROXY_UPSTREAM_GRPC", "protocols": "PROXY_PROTOCOLS"}
    name = names.get(str(error["loc"][0]) if error["loc"] else "", "PROXY_UPSTREAM")
    return f"INFERENCE_STORE_{name}: {_describe_error(error)}"


def _remove_consequences(errors: Sequence[ErrorDetails]) -> Sequence[ErrorDetails]:
    """Remove errors that only follow from a mistake inside: a list whose entries are wrong is also
    too short."""
    locations = [error["loc"] for error in errors]
    return [
        error
        for error in errors
        if not any(_is_inside(location, error["loc"]) for location in locations)
    ]


def _is_inside(inner: Sequence[int | str], outer: Sequence[int | str]) -> bool:
    return len(inner) > len(outer) and tuple(inner[: len(outer)]) == tuple(outer)


def _describe_error(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return f"there is no such name here{_suggest_names(error['loc'])}"
    return error["msg"].removeprefix("Value error, ")


def _suggest_names(location: Sequence[int | str]) -> str:
    """Return a hint with the names that are nearest to an unknown one."""
    entry: type[BaseModel] | None = _File
    for part in location[:-1]:
        if isinstance(part, str) and entry is not None:
            entry = _find_entry_type(entry, part)
    if entry is None:
        return ""
    near = nearest(str(location[-1]), tuple(entry.model_fields))
    return f"; the nearest are {', '.join(near)}" if near else ""


def _find_entry_type(entry: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the type of the entry under a name."""
    annotation = entry.model_fields[name].annotation
    inside = (annotation, *getattr(annotation, "__args__", ()))
    models = (
        argument
        for argument in inside
        if isinstance(argument, type) and issubclass(argument, BaseModel)
    )
    return next(models, None)


def _unknown_protocols(
    file: _File, document: Document, protocols: Collection[str]
) -> Sequence[str]:
    names = ", ".join(sorted(protocols))
    return [
        document.describe_error(
            ("upstreams", index, "protocols", at),
            f"there is no protocol {name!r}; known are {names}",
        )
        for index, upstream in enumerate(file.upstreams)
        for at, name in enumerate(upstream.protocols)
        if name not in protocols
    ]


def _unknown_upstreams(file: _File, document: Document) -> Sequence[str]:
    names = {entry.name for entry in file.upstreams}
    return [
        document.describe_error(
            ("models", index, "upstream"),
            f"there is no upstream {model.upstream!r}; known are {', '.join(sorted(names))}",
        )
        for index, model in enumerate(file.models)
        if model.upstream not in {None, *names}
    ]


def _repeated_names(file: _File, document: Document) -> Sequence[str]:
    names = [entry.name for entry in file.upstreams]
    return [
        document.describe_error(("upstreams", index, "name"), f"there are two upstreams {name!r}")
        for index, name in enumerate(names)
        if name in names[:index]
    ]


def _hashes_without_key(file: _File, document: Document) -> Sequence[str]:
    return [
        document.describe_error(
            ("models", index, "redactions", at),
            "a hash needs a key: set INFERENCE_STORE_PROXY_REDACTION_KEY, or drop the value",
        )
        for index, entry in enumerate(file.models)
        for at, redaction in enumerate(entry.redactions)
        if redaction.how == "hash"
    ]
