"""Who asks, what they may do, and what the api has switched on."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Rights over everything, a project, or a model."""

    rights: tuple[str, ...]
    role: Literal["reader", "analyst", "owner"] | None
    project_id: str | None
    model_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerLimits:
    """The bounds of one caller on one process of the api."""

    requests_per_minute: int | None
    body_bytes: int
    queries_at_once: int
    streams_at_once: int
    query_timeout_seconds: float
    presigned_url_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedOn:
    """What this api has switched on."""

    access_control: bool
    oidc: bool
    presigned_urls: bool
    thumbnails: bool
    read_replica: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: `GET /v1/me`."""

    kind: Literal["anyone", "token", "key", "oidc"]
    name: str
    display_name: str | None
    expires_at: datetime | None
    rights: tuple[str, ...]
    rights_over_everything: tuple[str, ...]
    grants: tuple[Grant, ...]
    limits: CallerLimits
    switched_on: SwitchedOn
    version: str
