"""A caller of the api, and its grants."""

from dataclasses import dataclass
from datetime import datetime

from inference_store.access.rights import OWNER, Grant, Right

from .scope import EVERYTHING, AccessScope, ScopePart


@dataclass(frozen=True, slots=True)
class Caller:
    """`name` is how the audit calls them: `key:<id>`, `oidc:<subject>`, `token`, `anyone`."""

    name: str
    grants: tuple[Grant, ...]
    expires_at: datetime | None = None
    """When the caller's key expires: no key that the caller makes or rotates outlives it. None: no
    limit."""
    display_name: str | None = None
    """The name of the caller's key for people."""

    @property
    def projects(self) -> frozenset[str]:
        """The projects that any grant covers."""
        return frozenset(grant.project_id for grant in self.grants if grant.project_id is not None)

    def scope(self, right: Right) -> AccessScope:
        """Return the models that a right was granted for."""
        giving = [grant for grant in self.grants if right in grant.held]
        if any(grant.project_id is None and grant.model_id is None for grant in giving):
            return EVERYTHING
        projects = frozenset(grant.project_id for grant in giving if grant.project_id is not None)
        models = frozenset(grant.model_id for grant in giving if grant.model_id is not None)
        return AccessScope((ScopePart(projects, models),))

    def lacks(self, grants: tuple[Grant, ...]) -> list[Right]:
        """Return the rights in these grants that the caller does not have, and so may not give."""
        return [
            right
            for right in Right
            for grant in grants
            if right in grant.held
            and not any(right in own.held and own.includes(grant) for own in self.grants)
        ]

    def outlived_by(self, expires_at: datetime | None) -> bool:
        """Return whether a key that expires then (None: never) would outlive the caller's own."""
        bound = self.expires_at
        return bound is not None and (expires_at is None or expires_at > bound)


# The callers if access control is off, and with the token of the settings.
ANYONE = Caller("anyone", OWNER)
TOKEN = Caller("token", OWNER)
