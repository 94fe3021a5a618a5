"""Reads the proxy's configuration from a file, or from the environment."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FilePath,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from inference_store.inference.field_docs import DocumentedModel
from inference_store.inference.nearest import nearest
from inference_store.inference.task_types import TASK_TYPES, task_type_of
from inference_store.platform.settings import WrongSetting

# The configuration's rules for the exchanges of a model: plain data, which is sent to another
# process.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The exchanges to keep: a share of them, and those that are always kept."""

    share: float = 1.0
    """The share, 0 to 1."""
    key: str | None = None
    """A metadata key: all exchanges with the same value are kept, or none; None draws each by
    itself."""
    always_errors: bool = False
    always_below: float | None = None
    """An answer whose best score is lower is always kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """A value to remove before anything is written."""

    what: Literal["metadata", "header", "path", "input"]
    name: str = ""
    """The metadata key, the header (any case), or the path in the request's JSON, like
    `inputs[].parameters.user`; nothing for `input`."""
    how: Literal["drop", "hash"] = "drop"
    """`hash`: write the keyed SHA-256 of the value instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one model's exchanges. `model_id` None: the model's own name."""

    model_id: str | None = None
    project_id: str | None = None
    task_type: str | None = None
    batched: bool = False
    dialect: str | None = None
    capture: bool = True
    strip_metadata: bool = False
    sampling: Sampling = Sampling()
    redactions: tuple[Redaction, ...] = ()
    metadata_headers: tuple[str, ...] = ()
    """Request headers, in lower case, that become metadata."""
    by_name: tuple["NamedRules", ...] = ()
    """If only the body names the model: the rules by its name and version; the first match applies,
    and the last matches all."""
    if_unnamed: tuple[Redaction, ...] = ()
    """If the body cannot be read: the redactions of all models there."""


@dataclass(frozen=True, slots=True)
class NamedRules:
    """Rules, and the models that they apply to."""

    model: str
    """`*` for any part of it; `m-<id>` without case."""
    version: str | None
    """None for every version."""
    rules: Rules


def find_rules(
    rules_by_name: tuple[NamedRules, ...], model: str, version: str | None
) -> Rules | None:
    """Return the rules of a model; None if none of these apply to it."""
    fitting = (
        entry.rules
        for entry in rules_by_name
        if entry.version in {None, version} and matches(entry.model, model)
    )
    return next(fitting, None)


def matches(pattern: str, model: str) -> bool:
    """Return whether a model's name matches a pattern; the reference platform's `m-<id>` ignores
    case."""
    if pattern.lower().startswith("m-"):
        return fnmatchcase(model.lower(), pattern.lower())
    return fnmatchcase(model, pattern)


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


Seconds = Annotated[float, Field(gt=0, le=86_400)]
Name = Annotated[str, Field(min_length=1, max_length=256)]


def _task_type(name: str) -> str:
    known_name = task_type_of(name).name
    if known_name == "unknown" and name != "unknown":
        raise ValueError(f"there is no task type {name!r}; known are {', '.join(TASK_TYPES)}")
    return known_name


def _url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
        raise ValueError("expected http://host:port or https://host:port, with a path or without")
    if url.username is not None or url.password is not None:
        raise ValueError("a name or password in it would take the place of the caller's own")
    return text.rstrip("/")


def _target(text: str) -> str:
    host, _, port = text.removeprefix("grpc://").removeprefix("grpcs://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("expected host:port, or grpcs://host:port over TLS")
    return text


class _Entry(DocumentedModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UpstreamEntry(_Entry):
    """A model server that stands behind the proxy."""

    name: Name
    """What it is called in logs, metrics and in `models`."""
    url: Annotated[str, AfterValidator(_url)] | None = None
    """Where it answers REST."""
    grpc: Annotated[str, AfterValidator(_target)] | None = None
    """Where it answers gRPC: `host:port`; `grpcs://host:port` over TLS."""
    omi: Annotated[str, AfterValidator(_target)] | None = None
    """Where an OMI container answers, in place of `url` and `grpc`: behind a bridge of ours it
    answers V2 over both."""
    protocols: tuple[str, ...] = ("v2", "v2-grpc")
    """The protocols whose calls are captured."""
    dialect: Literal["mlserver", "triton"] | None = None
    """What its gRPC streams answer; left out: told by the messages themselves."""
    models: tuple[Name, ...] = ("*",)
    """Names of the models it serves, `*` for any part of a name. A call goes to the first upstream
    that serves its model, one that names none to the first upstream."""
    connect_seconds: Seconds = 5.0
    """How long a connection may take."""
    read_seconds: Seconds = 300.0
    """How long the upstream may be silent."""
    keepalive_seconds: Seconds = 3.0
    """How long an idle connection is kept: less than the upstream keeps it."""
    connections: Annotated[int, Field(gt=0, le=65_536)] = 256
    """Most connections at once; further calls wait for one."""
    allow_shutdown: bool = False
    """Whether OMI's Shutdown passes; else it is refused."""
    ca_file: FilePath | None = None
    """Certificates (PEM) to trust: over REST beside the system's, over gRPC in their place."""
    certificate_file: FilePath | None = None
    """Our own certificate (PEM), where it asks for one."""
    key_file: FilePath | None = None
    """Private key (PEM) of our own certificate."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.omi is not None and (self.url is not None or self.grpc is not None):
            raise ValueError("omi stands in place of url and grpc: leave them out, or omi")
        if self.url is None and self.grpc is None and self.omi is None:
            raise ValueError("it has neither url nor grpc nor omi: give url, grpc or both, or omi")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together: give both, or neither")
        return self

    def serves(self, model: str | None) -> bool:
        """Return whether the upstream serves a model of this name."""
        return model is None or any(matches(pattern, model) for pattern in self.models)


class SamplingEntry(_Entry):
    """Which exchanges are kept."""

    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share that is kept, 0 to 1."""
    key: Name | None = None
    """A metadata key: all exchanges with the same value are kept, or none of them."""
    always_errors: bool = False
    """Keep every exchange that failed."""
    always_below: float | None = None
    """Keep every exchange whose best score is below this."""


class RedactionEntry(_Entry):
    """What is taken out before anything is written."""

    what: Literal["metadata", "header", "path", "input"]
    """A metadata key, a request header, a path in the request's JSON, or the whole input."""
    name: str = ""
    """The key, the header, or the path, like `inputs[].parameters.user`."""
    how: Literal["drop", "hash"] = "drop"
    """`hash`: a keyed SHA-256 in the value's place; of an input, as its `data_hash`."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.what == "input") == bool(self.name):
            raise ValueError("input takes no name, everything else needs one")
        return self


class ModelEntry(_Entry):
    """How the exchanges of some models are captured; the first entry that matches counts."""

    model: Name = "*"
    """The model's name as clients call it, `*` for any part of it; `m-<id>` without case."""
    version: Name | None = None
    """Only this version; left out: every version."""
    upstream: Name | None = None
    """Only at this upstream; left out: at every one."""
    model_id: Name | None = None
    """What the store calls it; left out: the name itself."""
    project_id: Name | None = None
    """The project that it belongs to."""
    task_type: Annotated[str, AfterValidator(_task_type)] | None = None
    """What the model does; events carry it."""
    batched: bool = False
    """The first dimension of each tensor counts the inputs of a request."""
    capture: bool = True
    """Off: its calls pass through, and are not counted; where only the body names the model, they
    are read to know it, and count as sampled out."""
    strip_metadata: bool = False
    """Take `parameters.metadata` out of what goes to the model server, where there is room."""
    sampling: SamplingEntry = SamplingEntry()
    """Which exchanges are kept; left out: all."""
    redactions: tuple[RedactionEntry, ...] = ()
    """What is taken out before anything is written."""
    metadata_headers: tuple[Name, ...] = ()
    """Request headers that become metadata, in any case."""

    def matches(self, upstream: str, model: str, version: str | None) -> bool:
        """Return whether this entry applies to a call."""
        if self.upstream not in {None, upstream} or self.version not in {None, version}:
            return False
        return matches(self.model, model)

    def rules(self, dialect: str | None) -> Rules:
        """Return the entry as rules."""
        return Rules(
            model_id=self.model_id,
            project_id=self.project_id,
            task_type=self.task_type,
            batched=self.batched,
            dialect=dialect,
            capture=self.capture,
            strip_metadata=self.strip_metadata,
            sampling=Sampling(**self.sampling.model_dump()),
            redactions=tuple(Redaction(**entry.model_dump()) for entry in self.redactions),
            metadata_headers=tuple(name.lower() for name in self.metadata_headers),
        )


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
