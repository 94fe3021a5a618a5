"""Findings of checks, and what a check is."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.platform.settings import ApiSettings, IngesterSettings, RetentionSettings


class DoctorSettings(IngesterSettings, ApiSettings, RetentionSettings):
    """The settings of every service: each check reads some of them."""

    url: str | None = None
    """Address of the api, as for the client; unset: the host and port that the api binds."""


class State(StrEnum):
    """The state of a finding; each is worse than the one before."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: its state, what was seen, and what to do."""

    state: State
    seen: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of the checks."""

    settings: DoctorSettings
    engine: AsyncEngine


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `needs`: checks without which this one has nothing to examine."""

    name: str
    sentence: str
    look: Callable[[Subject], Awaitable[Sequence[Finding]]]
    needs: Sequence[str] = ()


def ok(seen: str) -> Finding:
    """Make a finding that is as it should be."""
    return Finding(State.OK, seen)


def warning(seen: str, remedy: str) -> Finding:
    """Make a finding that works now and will cause trouble."""
    return Finding(State.WARNING, seen, remedy)


def failed(seen: str, remedy: str) -> Finding:
    """Make a finding that does not work."""
    return Finding(State.FAILED, seen, remedy)
