"""API keys."""

from typing import Annotated

from pydantic import ConfigDict, Field

from inference_store.access.credentials import ApiKey
from inference_store.access.rights import Grant, Right
from inference_store.api.shown import Shown

from .fields import Body, Instant, ShortText


class NewKey(Body):
    """A key to make. A key can be given no more than whoever makes it has."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "hallway dashboard",
                    "grants": [{"role": "analyst", "model_id": "hallway-detector"}],
                    "expires_at": "2027-06-01T00:00:00Z",
                }
            ]
        }
    )

    name: Annotated[ShortText, Field(min_length=1)]
    """Who or what uses it, for people."""
    grants: Annotated[list[Grant], Field(min_length=1, max_length=100)]
    expires_at: Instant | None = None
    """When it stops working; left out: never."""


class Rotation(Body):
    """A new text for a key."""

    old_works_until: Instant | None = None
    """Until when the text before works beside the new one; left out: it stops at once."""
    expires_at: Instant | None = None
    """When the key expires from now on; left out: as it was."""


class ShownGrant(Shown):
    """Rights over everything, a project, or a model."""

    rights: list[Right]
    project_id: str | None
    model_id: str | None


class ShownApiKey(Shown, of=ApiKey):
    """An API key, without its text."""

    grants: list[ShownGrant]


class NewSecret(ShownApiKey):
    """An API key with its text, which is shown this once and never again."""

    key: str = Field(examples=["isk_k7mwx2ab9cde_…"])


class KeyListPage(Shown):
    """API keys, the newest first; revoked ones too."""

    items: list[ShownApiKey]
    next: str | None
