"""Access control: what a route needs, which models exist for its caller, what is audited."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Annotated, Any, Final, Protocol, TypeAlias
from uuid import UUID

from fastapi import Depends, Request
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.datastructures import State

from inference_store.access import AccessScope, Action, Caller, Who
from inference_store.access.credentials import Session
from inference_store.access.rights import ANYONE, Right
from inference_store.erasure.ledger import Ledger
from inference_store.index import registrations
from inference_store.index.audit import note
from inference_store.index.registrations import Registration, models_of, refuse_model
from inference_store.inference.errors import Forbidden, NotFound
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query import lookup
from inference_store.query.lookup import Extent, model_with_extent

EXTENSION: Final = "x-needs"


class Over(StrEnum):
    """The extent that the right must have been given for."""

    MODEL = "model"
    """The model in the path."""
    PROJECT = "project"
    """The project in the path: its models, also those to come."""
    SOME = "some"
    """Any model at all: the answer is narrowed to those it was given over."""
    EVERYTHING = "everything"
    """No bounds: what is asked belongs to no model."""
    CALLER = "caller"
    """Only the caller: any authenticated caller may ask, whatever its rights."""


@dataclass(frozen=True, slots=True)
class Needs:
    """A right, and the extent that it is needed for."""

    right: Right
    over: Over = Over.MODEL


def declare(needed: Needs) -> dict[str, Any]:
    """Build the `openapi_extra` of a route that needs this."""
    return {EXTENSION: {"right": needed.right.value, "over": needed.over.value}}


def read_needs(extra: dict[str, Any] | None) -> Needs:
    """Read what a route's `openapi_extra` declares. Raises TypeError if it declares nothing."""
    declared = (extra or {}).get(EXTENSION)
    if declared is None:
        raise TypeError("a route under /v1 says what it needs: add it by Router.add")
    return Needs(Right(declared["right"]), Over(declared["over"]))


class OfModel(Protocol):
    """A registration, or what is of one model."""

    @property
    def model_id(self) -> str:
        """The model."""

    @property
    def project_id(self) -> str | None:
        """The model's project."""


@dataclass(slots=True)
class Access:
    """The caller, their address, and what the route needs; and what the api works with."""

    request: Request
    caller: Caller
    client: str | None
    needed: Needs
    session: Session | None = None
    """The session that the request is made in; None: with a key or token."""
    _is_checked: bool = False
    _reads: list[Callable[[AsyncConnection], Awaitable[None]]] = field(default_factory=list)
    _models_of: Mapping[str, frozenset[str]] | None = None

    @property
    def app(self) -> State:
        """What the api works with: see `create_app`."""
        app: State = self.request.app.state
        return app

    @property
    def settings(self) -> ApiSettings:
        """The settings of the api."""
        settings: ApiSettings = self.app.settings
        return settings

    @property
    def engine(self) -> AsyncEngine:
        """The first Postgres, which is written to."""
        engine: AsyncEngine = self.app.engine
        return engine

    @property
    def blobs(self) -> Blobs:
        """The object store."""
        blobs: Blobs = self.app.blobs
        return blobs

    @property
    def ledger(self) -> Ledger:
        """For what is written there before it takes effect; beside it nothing that is `Writing`."""
        ledger: Ledger = self.app.ledger
        return ledger

    @property
    def who(self) -> Who:
        """The caller as the audit records it."""
        return Who(self.caller.name, self.client)

    @property
    def admission_name(self) -> str:
        """The name that admission control counts as one caller; without one, an address."""
        if self.caller is ANYONE:
            return find_network(self.client)
        return self.caller.name

    @property
    def sees(self) -> AccessScope:
        """The models that exist for the caller."""
        return self._scope(Right.READ)

    @property
    def scope(self) -> AccessScope:
        """The models that the route may show or change: visible, and with the right it needs."""
        return self.sees & self._scope(self.needed.right)

    def _scope(self, right: Right) -> AccessScope:
        scope = self.caller.scope(right)
        return scope if self._models_of is None else scope.settled(self._models_of)

    async def settle(self) -> None:
        """Read the models of the caller's projects from the first Postgres, whatever else is read
        elsewhere: a replica that lags would still show a model that has left the project."""
        if projects := self.caller.projects:
            async with self.engine.connect() as connection:
                self._models_of = await models_of(connection, projects)

    def check(self) -> None:
        """Raise Forbidden if no model can be reached; a model that is named is checked later."""
        if self.needed.over is Over.EVERYTHING and not self.scope.is_everything:
            raise Forbidden(f"This needs {self._list_rights()} over everything.")
        if self.needed.over is Over.SOME and self.scope.is_nothing:
            raise Forbidden(f"This needs {self._list_rights()} over at least one model.")

    def _list_rights(self) -> str:
        right = self.needed.right
        if right is Right.READ:
            return "the right `read`"
        return f"the rights `read` and `{right.value}`"

    def require(self, right: Right) -> None:
        """Require another right than the route's, over the same models: a stream needs `export`.
        Raises Forbidden as `check` does."""
        self.needed = Needs(right, self.needed.over)
        self.check()

    async def find_model(
        self, connection: AsyncConnection, model_id: str, *, lock: bool = False
    ) -> Registration:
        """Return the model of the path.

        Raises NotFound, in the same words if it does not exist and if it does not exist for the
        caller; Forbidden if it does, and the right is missing.
        """
        self._is_checked = True
        try:
            model = await registrations.get(connection, model_id, lock=lock, within=self.sees)
        except NotFound:
            raise await refuse_model(connection, model_id, self.sees) from None
        self.require_right(self.needed.right, model)
        return model

    async def find_model_to_query(
        self, connection: AsyncConnection, model_id: str
    ) -> tuple[Registration, Extent]:
        """Return the model of the path, and where its inferences can be, for a query about them."""
        self._is_checked = True
        try:
            model, extent = await model_with_extent(connection, model_id, within=self.sees)
        except NotFound:
            raise await refuse_model(connection, model_id, self.sees) from None
        self.require_right(self.needed.right, model)
        return model, extent

    async def find_inferences(
        self, connection: AsyncConnection, model_id: str, inference_id: str
    ) -> tuple[Registration, Sequence[UUID]]:
        """Return the model of the path, and its inferences of that id, the newest first."""
        model, extent = await self.find_model_to_query(connection, model_id)
        uids = await lookup.find_by_id(connection, model.model, inference_id, spans=extent.spans)
        return model, uids

    async def check_project(self, connection: AsyncConnection, project_id: str) -> None:
        """Check the project of the path.

        Raises NotFound if none of its models exists for the caller, and Forbidden if the right over
        the whole project is missing.
        """
        self._is_checked = True
        if self.scope.has_project(project_id):
            return
        if not self.sees.has_project(project_id) and not await registrations.page(
            connection, limit=1, within=self.sees, project_id=project_id
        ):
            raise NotFound(f"There is no project {project_id!r}.")
        raise Forbidden(f"This needs {self._list_rights()} over the whole project.")

    def require_over(
        self, right: Right, level: str, subject: str, model: Registration | None
    ) -> None:
        """Raise Forbidden unless the caller has a further right over a model, a project, or all."""
        if model is not None:
            self.require_right(right, model)
            return
        scope = self._scope(right)
        if not (scope.has_project(subject) if level == "project" else scope.is_everything):
            raise Forbidden(f"This also needs the right `{right.value}`.")

    async def find_models(
        self,
        connection: AsyncConnection,
        *,
        model_ids: Sequence[str] | None = None,
        project_id: str | None = None,
        limit: int,
    ) -> list[Registration]:
        """Return the models with these ids, or up to `limit` of a project or of all, in order of
        id.

        Each id must exist for the caller. Raises what `model` raises, for the first id that fails;
        NotFound for a project of which no model exists for the caller.
        """
        if model_ids is None:
            models = await registrations.page(
                connection, limit=limit, within=self.scope, project_id=project_id
            )
            if project_id is not None and not models:
                raise NotFound(f"There is no project {project_id!r} with models that you may read.")
            return models
        by_id = await registrations.find_by_ids(connection, set(model_ids), within=self.sees)
        for number, model_id in enumerate(model_ids):
            if model_id not in by_id:
                at = f"model_ids[{number}]"
                raise await refuse_model(connection, model_id, self.sees, at=at)
            self.require_right(self.needed.right, by_id[model_id])
        return [by_id[model_id] for model_id in sorted(by_id)]

    async def check_registration(
        self, connection: AsyncConnection, model_id: str, project_id: str | None
    ) -> bool:
        """Return whether the model is missing, so that nothing is locked.

        Raises what `model` raises if the caller may not register it so. A model may be registered
        with rights over its id or over everything. It may move between projects with rights over
        both: otherwise whoever has one model could give it to a project, or take it away.
        """
        self._is_checked = True
        model = None
        try:
            model = await self.find_model(connection, model_id, lock=True)
        except NotFound:
            if not all(model_id in part.models for part in self.scope.parts):
                if self.sees.is_everything:
                    message = "Registering a model needs `admin` over everything, or over its id."
                    raise Forbidden(message) from None
                raise NotFound(f"There is no model {model_id!r} that you may change.") from None
        before = None if model is None else model.project_id
        leaves = before is not None and not self.scope.has_project(before)
        if project_id != before and (leaves or not self.scope.has_project(project_id)):
            raise Forbidden(
                f"The model would move from project {before!r} to {project_id!r}: that needs"
                " `read` and `admin` over both, or over everything."
            )
        if model is not None:
            self._refuse_gain(model, project_id)
        return model is None

    def _refuse_gain(self, model: Registration, project_id: str | None) -> None:
        gained = [
            f"`{right.value}`"
            for right in Right
            if self.caller.scope(right).has(model.model_id, project_id)
            and not self.has_right(right, model)
        ]
        if gained:
            raise Forbidden(
                f"Moving the model would give you {', '.join(gained)} over it, which you do"
                " not have: ask someone who has these rights to move it."
            )

    def require_right(self, right: Right, model: OfModel) -> None:
        """Raise Forbidden unless the caller has the right over a model that they see."""
        if not self.has_right(right, model):
            raise Forbidden(f"You lack the right `{right.value}` over the model.")

    def has_right(self, right: Right, model: OfModel) -> bool:
        """Return whether the caller has a right over a model that they see, or what is of it."""
        return self._scope(right).has(model.model_id, model.project_id)

    async def note(
        self,
        connection: AsyncConnection,
        action: Action,
        registration: Registration | None = None,
        uids: Sequence[UUID] = (),
        **detail: Any,
    ) -> None:
        """Audit a change, in its own transaction."""
        model = None if registration is None else (registration.model, registration.model_id)
        await note(connection, self.who, action, model=model, uids=uids, **detail)

    def note_read(
        self,
        action: Action,
        registration: Registration | None = None,
        uids: Sequence[UUID] = (),
        **detail: Any,
    ) -> None:
        """Audit a read: it is written when the route is done, before the answer is sent."""
        self._reads.append(
            lambda connection: self.note(connection, action, registration, uids, **detail)
        )

    async def finish(self) -> None:
        """Write the reads that are not written yet.

        Raises RuntimeError if a route never asked for its model.
        """
        if self.needed.over in (Over.MODEL, Over.PROJECT) and not self._is_checked:
            raise RuntimeError("a route about a model answers only what Access.find_model allowed")
        if self._reads:
            async with self.engine.connect() as connection:
                # Each is committed by itself, which saves two round trips. After a crash between
                # two, there are entries for an answer that nobody received.
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                await self.write_reads(connection)

    async def write_reads(self, connection: AsyncConnection) -> None:
        """Write the reads so far, by a connection to the first Postgres."""
        reads, self._reads = self._reads, []
        for write in reads:
            await write(connection)


async def _access(request: Request) -> Access:
    access: Access = request.state.access
    return access


Asking: TypeAlias = Annotated[Access, Depends(_access)]


def find_network(client: str | None) -> str:
    """Return what counts as one stranger: an address, or the /64 of an IPv6 address, which one host
    has."""
    try:
        address = ip_address((client or "").partition("%")[0])
    except ValueError:
        return client or ""
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped or ip_network((address, 64), strict=False))
