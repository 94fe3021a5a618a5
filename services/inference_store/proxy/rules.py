"""What the configuration says about the exchanges of a model. Plain data: it is told to another
process."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which exchanges are kept: a share of them, and what is always kept."""

    share: float = 1.0
    """0 to 1."""
    key: str | None = None
    """A metadata key: all with the same value are kept, or none; None: each by itself."""
    always_errors: bool = False
    always_below: float | None = None
    """An answer whose best score is lower is always kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """What is taken out before anything is written."""

    what: Literal["metadata", "header", "path", "input"]
    name: str = ""
    """The metadata key, the header (any case), or the path in the request's JSON, like
    `inputs[].parameters.user`; nothing for `input`."""
    how: Literal["drop", "hash"] = "drop"
    """`hash`: the keyed SHA-256 of the value in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How one model's exchanges are captured. `model_id` None: the model's own name."""

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
    """Where only the body says the model: the rules by its name and version; the first that fit
    count, and the last fit all."""
    if_unnamed: tuple[Redaction, ...] = ()
    """And where it cannot be read: all that is taken out for any model there."""


@dataclass(frozen=True, slots=True)
class NamedRules:
    """Rules, and the models that they are about."""

    model: str
    """`*` for any part of it; `m-<id>` without case."""
    version: str | None
    """None: every version."""
    rules: Rules


def rules_of(named: tuple[NamedRules, ...], model: str, version: str | None) -> Rules | None:
    """The rules of a model; None where none of these are about it."""
    fitting = (
        each.rules
        for each in named
        if each.version in {None, version} and matches(each.model, model)
    )
    return next(fitting, None)


def matches(pattern: str, model: str) -> bool:
    """Whether a model's name is of a pattern; the reference platform's `m-<id>` without case."""
    if pattern.lower().startswith("m-"):
        return fnmatchcase(model.lower(), pattern.lower())
    return fnmatchcase(model, pattern)
