"""The configuration's rules for the exchanges of a model: plain data, which is sent to another
process."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal


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
