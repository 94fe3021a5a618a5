"""Who the caller is, and what they may do."""

from importlib.metadata import version
from typing import get_args

from inference_store.access.rights import ROLES, Grant, Right, Role
from inference_store.api.access import Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Settings
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.me import (
    OwnGrant,
    OwnLimits,
    ShownCaller,
    ShownSession,
    SwitchedOn,
)
from inference_store.platform.settings import ApiSettings

router = make_router("keys and audit")


@router.get(
    "/me",
    response_model=ShownCaller,
    responses=document_refusals(),
    openapi_extra=needs(Right.READ, Over.CALLER),
    summary="Read what you may do",
)
async def get_me(access: Asking, to: Settings) -> Answer:
    """Who the caller is, what they may do with which models, their limits, and what this api has
    switched on. Nothing else is read for it."""
    caller = access.caller
    kind, _, rest = caller.name.partition(":")
    return Answer(
        ShownCaller.show(
            caller,
            kind=kind,
            display_name=rest if kind == "oidc" else caller.display_name,
            session=None if access.session is None else ShownSession.show(access.session),
            rights=[right for right in Right if not caller.scope(right).is_nothing],
            rights_over_everything=[right for right in Right if caller.scope(right).is_everything],
            grants=[_show_grant(grant) for grant in caller.grants],
            limits=_show_limits(to),
            switched_on=_show_switches(to),
            version=version("inference-store"),
        )
    )


def _show_grant(grant: Grant) -> OwnGrant:
    roles: tuple[Role, ...] = get_args(Role)
    return OwnGrant.show(
        grant,
        rights=[right for right in Right if right in grant.held],
        role=next((role for role in roles if ROLES[role] == grant.held), None),
    )


def _show_limits(to: ApiSettings) -> OwnLimits:
    unlimited = to.auth == "off" or not to.api_rate_limit_per_minute
    return OwnLimits.show(
        to,
        requests_per_minute=None if unlimited else to.api_rate_limit_per_minute,
        body_bytes=to.api_max_body_bytes,
        queries_at_once=to.most_queries_of_one,
        streams_at_once=to.most_streams_of_one,
    )


def _show_switches(to: ApiSettings) -> SwitchedOn:
    return SwitchedOn(
        access_control=to.auth == "on",
        oidc=to.auth == "on" and to.oidc_issuer is not None,
        presigned_urls=to.presigned_urls == "on",
        thumbnails=to.thumbnail_processes > 0,
        read_replica=to.postgres_read_dsn is not None,
    )
