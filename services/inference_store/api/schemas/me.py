"""What a caller may do."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from inference_store.access.rights import Right, Role
from inference_store.api.shown import Shown


class OwnGrant(Shown):
    """Rights over everything, a project, or a model."""

    rights: list[Right]
    role: Role | None
    """The role that has exactly these rights; null: none has."""
    project_id: str | None
    model_id: str | None
    """Null, as `project_id`: over everything."""


class OwnLimits(Shown):
    """The bounds of one caller on one process of the api."""

    requests_per_minute: int | None
    """Null: no bound."""
    body_bytes: int
    """Of the body of a request."""
    queries_at_once: int
    """More wait for their turn."""
    streams_at_once: int
    query_timeout_seconds: float
    presigned_url_seconds: int


class SwitchedOn(Shown):
    """What this api has switched on."""

    access_control: bool
    """False: anyone who reaches the api may do everything."""
    oidc: bool
    """Whether tokens of an OIDC issuer are accepted."""
    presigned_urls: bool
    """False: blobs are read through the api alone."""
    thumbnails: bool
    """Whether thumbnails of inputs are made."""
    read_replica: bool
    """Whether a replica answers queries, which may lag behind."""


class ShownSession(Shown):
    """The session of a browser that is signed in."""

    started_at: datetime
    idle_until: datetime
    """When it ends unless it is used before."""
    expires_at: datetime
    """When it ends in any case."""


class ShownCaller(Shown):
    """Who asks, what they may do, and what this api has switched on."""

    kind: Literal["anyone", "token", "key", "oidc"]
    """`anyone`: access control is off; `token`: the token of the settings."""
    name: str = Field(examples=["key:k7mwx2ab9cde"])
    """How the audit names them."""
    display_name: str | None = Field(examples=["hallway dashboard"])
    """The name of their key, or the subject of their token; null: there is neither."""
    expires_at: datetime | None
    """When their key expires; null: never, or they have none."""
    session: ShownSession | None
    """The session that the request is made in; null: it is made with a key or token, or neither."""
    rights: list[Right]
    """Every right that they have over something. Without `read` nothing exists for them."""
    rights_over_everything: list[Right]
    grants: list[OwnGrant]
    """What they have, and over what; together they may do all of it."""
    limits: OwnLimits
    switched_on: SwitchedOn
    version: str
    """Of this api."""
