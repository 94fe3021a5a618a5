"""Who asks, and what they were given."""

from dataclasses import dataclass
from datetime import datetime

from inference_store.access.rights import OWNER, Grant, Right

from .reach import EVERYTHING, Part, Reach


@dataclass(frozen=True, slots=True)
class Caller:
    """`name` is how the audit calls them: `key:<id>`, `oidc:<subject>`, `token`, `anyone`."""

    name: str
    grants: tuple[Grant, ...]
    expires_at: datetime | None = None
    """When their key expires: no key that they make or rotate outlives it. None: no bound."""

    @property
    def projects(self) -> frozenset[str]:
        """Those that they were given anything over."""
        return frozenset(each.project_id for each in self.grants if each.project_id is not None)

    def reach(self, right: Right) -> Reach:
        """The models that a right was given over."""
        giving = [grant for grant in self.grants if right in grant.held]
        if any(grant.project_id is None and grant.model_id is None for grant in giving):
            return EVERYTHING
        projects = frozenset(grant.project_id for grant in giving if grant.project_id is not None)
        models = frozenset(grant.model_id for grant in giving if grant.model_id is not None)
        return Reach((Part(projects, models),))

    def lacks(self, grants: tuple[Grant, ...]) -> list[Right]:
        """The rights in these that are not the caller's own, so not theirs to give."""
        return [
            right
            for right in Right
            for wanted in grants
            if right in wanted.held
            and not any(right in own.held and own.includes(wanted) for own in self.grants)
        ]

    def outlived_by(self, expires_at: datetime | None) -> bool:
        """Whether a key that expires then (None: never) would work on after the caller's own."""
        bound = self.expires_at
        return bound is not None and (expires_at is None or expires_at > bound)


# Where access control is off, and for the token of the settings.
ANYONE = Caller("anyone", OWNER)
TOKEN = Caller("token", OWNER)
