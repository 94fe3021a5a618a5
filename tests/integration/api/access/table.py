"""The right that every route needs, in one table that the tests walk. Add a row for a new route."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference_store.access.rights import Right
from inference_store.api.access import Over


@dataclass(frozen=True, slots=True)
class Row:
    """The right that a route needs, its scope, and the status of an allowed request."""

    right: Right
    over: Over
    status: int
    body: Any = None
    shows_stored: bool = True
    """Whether the answer shows stored data."""
    query: str = ""
    """The query string that follows the path."""
    names_model: bool = False
    """Whether the body names the model, which may not exist for the caller."""
    also: tuple[Right, ...] = ()
    """Further rights over the model that this request needs, though the route itself does not."""


READ, READ_INPUTS, ANNOTATE = Right.READ, Right.READ_INPUTS, Right.ANNOTATE
EXPORT, DELETE, HOLD, ADMIN = Right.EXPORT, Right.DELETE, Right.HOLD, Right.ADMIN
MODEL, PROJECT, SOME = Over.MODEL, Over.PROJECT, Over.SOME
EVERYTHING, CALLER = Over.EVERYTHING, Over.CALLER
_M = "/v1/models/{model_id}"
_P = "/v1/projects/{project_id}"
_I = f"{_M}/inferences/{{inference_id}}"
_R = f"{_M}/replays/{{replay_id}}"
_RULES = {"rules": [{"keep_input": "P30D", "keep_inference": "P1Y"}]}
_OF_MODEL = {"level": "model", "id": "{model_id}", **_RULES}
_OF_PROJECT = {"level": "project", "id": "{project_id}", **_RULES}
_DEFAULT = {"level": "default", "id": None, **_RULES}
_TAGS = {"add": ["seen"], "inference_ids": ["one"]}
_ITEM = {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}]}
_HOLD = {"name": "x", "reason": "y", "model_id": "{model_id}", "filter": "ok"}
_VIEW = {"name": "x", "model_id": "{model_id}", "filter": "ok"}
_SHARED = (ANNOTATE,)
_INPUTS = (READ_INPUTS,)
_KEY = {"name": "x", "grants": [{"rights": ["read"]}]}
_PROJECT = {"project_id": "{model_id}-project"}
_WINDOWS = {"reference": {}, "current": {"filter": "inference_id = 'one'"}}
_UID = "019ac3f2-7c00-8123-9abc-0123456789ab"

TABLE: dict[tuple[str, str], Row] = {
    ("GET", "/v1/models"): Row(READ, SOME, 200),
    ("GET", "/v1/projects"): Row(READ, SOME, 200),
    ("GET", _M): Row(READ, MODEL, 200),
    ("PUT", _M): Row(ADMIN, MODEL, 200, _PROJECT),
    ("DELETE", _M): Row(ADMIN, MODEL, 409),
    ("GET", f"{_M}/metadata-keys"): Row(READ, MODEL, 200),
    ("GET", f"{_M}/queryables"): Row(READ, MODEL, 200),
    ("GET", f"{_M}/overview"): Row(READ, MODEL, 200),
    ("GET", "/v1/conformance"): Row(READ, SOME, 200, shows_stored=False),
    ("GET", f"{_M}/inferences"): Row(READ, MODEL, 200),
    ("POST", f"{_M}/inferences/query"): Row(READ, MODEL, 200, {}),
    ("POST", f"{_M}/inferences/count"): Row(READ, MODEL, 200, {}),
    ("POST", f"{_M}/inferences/neighbours"): Row(READ, MODEL, 200, {"uid": _UID}),
    ("POST", "/v1/inferences/query"): Row(READ, SOME, 200, {}),
    ("POST", "/v1/inferences/count"): Row(READ, SOME, 200, {}),
    ("POST", f"{_M}/inferences/aggregate"): Row(READ, MODEL, 200, {}),
    ("POST", f"{_M}/inferences/evaluate"): Row(READ, MODEL, 200, {}),
    ("POST", f"{_M}/inferences/drift"): Row(READ, MODEL, 200, _WINDOWS),
    ("POST", "/v1/inferences/aggregate"): Row(
        READ, SOME, 200, {"group_by": ["model_id", "project_id"]}
    ),
    ("GET", f"{_M}/inferences/follow"): Row(
        READ, MODEL, 200, query="?seconds=0", shows_stored=False
    ),
    ("GET", _I): Row(READ, MODEL, 200),
    ("DELETE", _I): Row(DELETE, MODEL, 202),
    ("GET", f"{_I}/data"): Row(READ_INPUTS, MODEL, 200),
    ("GET", f"{_I}/response"): Row(READ, MODEL, 200),
    ("GET", f"{_I}/metadata"): Row(READ_INPUTS, MODEL, 200),
    ("POST", f"{_I}/metadata"): Row(ANNOTATE, MODEL, 200, _ITEM),
    ("POST", f"{_M}/inferences/tags"): Row(ANNOTATE, MODEL, 200, _TAGS),
    ("PUT", f"{_I}/ground-truth"): Row(ANNOTATE, MODEL, 200, {"items": []}),
    ("GET", f"{_I}/ground-truth"): Row(READ, MODEL, 200),
    # the source has said nothing
    ("DELETE", f"{_I}/ground-truth"): Row(ANNOTATE, MODEL, 404, query="?source=nobody"),
    ("POST", f"{_M}/ground-truth"): Row(ANNOTATE, MODEL, 422, query="?columns=label=class"),
    ("POST", "/v1/ground-truth"): Row(ANNOTATE, SOME, 422, query="?columns=label=class"),
    # none waits
    ("DELETE", f"{_M}/ground-truth"): Row(ANNOTATE, MODEL, 404),
    ("GET", f"{_I}/drawing"): Row(READ, MODEL, 200),
    # its input is no picture
    ("GET", f"{_I}/thumbnail"): Row(READ_INPUTS, MODEL, 422),
    ("POST", f"{_M}/inferences/thumbnails"): Row(READ_INPUTS, MODEL, 200, {"uids": [_UID]}),
    ("GET", f"{_I}/retention"): Row(READ, MODEL, 200),
    ("GET", f"{_M}/retention-policy"): Row(READ, MODEL, 200),
    ("PUT", f"{_M}/retention-policy"): Row(ADMIN, MODEL, 200, _OF_MODEL),
    ("DELETE", f"{_M}/retention-policy"): Row(ADMIN, MODEL, 204),
    ("POST", f"{_M}/retention-policy/preview"): Row(ADMIN, MODEL, 200, _OF_MODEL),
    ("DELETE", f"{_M}/retention-policy/pending"): Row(ADMIN, MODEL, 204),
    ("POST", f"{_P}/retention-policy/preview"): Row(ADMIN, PROJECT, 200, _OF_PROJECT),
    ("DELETE", f"{_P}/retention-policy/pending"): Row(ADMIN, PROJECT, 204),
    ("POST", "/v1/retention-policy/preview"): Row(ADMIN, EVERYTHING, 200, _DEFAULT),
    ("DELETE", "/v1/retention-policy/pending"): Row(ADMIN, EVERYTHING, 204),
    ("GET", f"{_M}/retention-policy/history"): Row(READ, MODEL, 200),
    ("GET", f"{_P}/retention-policy"): Row(READ, PROJECT, 200),
    ("PUT", f"{_P}/retention-policy"): Row(ADMIN, PROJECT, 200, _OF_PROJECT),
    ("DELETE", f"{_P}/retention-policy"): Row(ADMIN, PROJECT, 204),
    ("GET", f"{_P}/retention-policy/history"): Row(READ, PROJECT, 200),
    ("GET", "/v1/retention-policy"): Row(READ, SOME, 200, shows_stored=False),
    ("PUT", "/v1/retention-policy"): Row(ADMIN, EVERYTHING, 200, _DEFAULT),
    ("DELETE", "/v1/retention-policy"): Row(ADMIN, EVERYTHING, 204),
    ("GET", "/v1/retention-policy/history"): Row(READ, SOME, 200, shows_stored=False),
    ("POST", f"{_M}/retention-policy/run"): Row(ADMIN, MODEL, 202),
    ("POST", f"{_P}/retention-policy/run"): Row(ADMIN, PROJECT, 202),
    ("POST", "/v1/retention-policy/run"): Row(ADMIN, EVERYTHING, 202),
    ("GET", "/v1/retention/runs"): Row(READ, SOME, 200),
    ("GET", "/v1/retention/runs/{run_id}"): Row(READ, SOME, 200),
    ("GET", "/v1/certificates"): Row(READ, SOME, 200),
    ("GET", "/v1/certificates/keys"): Row(READ, SOME, 200, shows_stored=False),
    ("GET", "/v1/certificates/{certificate}"): Row(READ, SOME, 200),
    ("GET", "/v1/certificates/{certificate}/leaves"): Row(READ, SOME, 200),
    ("GET", "/v1/erasures"): Row(READ, SOME, 200),
    ("GET", "/v1/erasures/{erasure_id}"): Row(READ, SOME, 200),
    ("POST", f"{_M}/erasures"): Row(DELETE, MODEL, 202, {"filter": "NOT ok"}),
    ("POST", "/v1/erasures"): Row(DELETE, SOME, 202, {"filter": "ok"}),
    ("POST", "/v1/erasures/{erasure_id}/cancel"): Row(DELETE, SOME, 202),
    ("POST", "/v1/erasures/{erasure_id}/give-up"): Row(DELETE, SOME, 409, {"reason": "over"}),
    ("POST", "/v1/holds"): Row(HOLD, SOME, 201, _HOLD, names_model=True),
    ("GET", "/v1/holds"): Row(HOLD, SOME, 200),
    ("GET", "/v1/holds/{hold_id}"): Row(HOLD, SOME, 200),
    ("POST", f"{_M}/exports"): Row(EXPORT, MODEL, 202, {"filter": "ok"}),
    ("GET", "/v1/exports"): Row(EXPORT, SOME, 200),
    ("GET", "/v1/exports/{export_id}"): Row(EXPORT, SOME, 200),
    ("POST", "/v1/exports/{export_id}/cancel"): Row(EXPORT, SOME, 202),
    ("POST", "/v1/exports/{export_id}/restart"): Row(EXPORT, SOME, 409),
    ("GET", "/v1/exports/{export_id}/parts"): Row(EXPORT, SOME, 200),
    ("GET", "/v1/exports/{export_id}/parts/{number}"): Row(EXPORT, SOME, 404),
    ("GET", "/v1/exports/{export_id}/erased"): Row(EXPORT, SOME, 200, shows_stored=False),
    # replays are off
    ("POST", f"{_M}/replays"): Row(
        EXPORT, MODEL, 409, {"to": {"model": "{model_id}"}}, also=_INPUTS
    ),
    ("GET", f"{_M}/replays"): Row(READ, MODEL, 200),
    ("GET", _R): Row(READ, MODEL, 200),
    ("POST", f"{_R}/cancel"): Row(EXPORT, MODEL, 202),
    ("POST", f"{_R}/restart"): Row(EXPORT, MODEL, 409, also=_INPUTS),
    ("GET", f"{_R}/differences"): Row(READ, MODEL, 200),
    ("PUT", "/v1/holds/{hold_id}"): Row(HOLD, SOME, 200, _HOLD),
    ("DELETE", "/v1/holds/{hold_id}"): Row(HOLD, SOME, 200, query="?reason=over"),
    ("GET", "/v1/holds/{hold_id}/held"): Row(HOLD, SOME, 200),
    ("GET", "/v1/holds/{hold_id}/history"): Row(HOLD, SOME, 200),
    ("POST", "/v1/views"): Row(READ, SOME, 201, _VIEW, names_model=True),
    ("GET", "/v1/views"): Row(READ, SOME, 200),
    ("GET", "/v1/views/{view_id}"): Row(READ, SOME, 200),
    ("PATCH", "/v1/views/{view_id}"): Row(READ, SOME, 200, {"name": "other"}, also=_SHARED),
    ("DELETE", "/v1/views/{view_id}"): Row(READ, SOME, 204, also=_SHARED),
    ("GET", "/v1/dead-letters"): Row(ADMIN, SOME, 200),
    ("GET", "/v1/dead-letters/{id}"): Row(ADMIN, SOME, 200),
    ("POST", "/v1/dead-letters/redrive"): Row(ADMIN, SOME, 202, {}),
    ("POST", "/v1/dead-letters/{id}/redrive"): Row(ADMIN, SOME, 202),
    ("POST", "/v1/dead-letters/{id}/discard"): Row(ADMIN, SOME, 200, {"reason": "x"}),
    ("GET", "/v1/parked-events"): Row(ADMIN, SOME, 200),
    ("POST", "/v1/parked-events/retry"): Row(ADMIN, SOME, 202, {}),
    ("POST", "/v1/parked-events/{event_id}/retry"): Row(ADMIN, SOME, 202),
    ("POST", "/v1/parked-events/{event_id}/discard"): Row(ADMIN, SOME, 200, {"reason": "x"}),
    ("GET", "/v1/reconciliations"): Row(ADMIN, EVERYTHING, 200),
    ("POST", "/v1/reconciliations"): Row(ADMIN, EVERYTHING, 202, {}),
    ("GET", "/v1/reconciliations/{reconciliation_id}"): Row(ADMIN, EVERYTHING, 200),
    ("POST", "/v1/reconciliations/{reconciliation_id}/erasures"): Row(DELETE, EVERYTHING, 409, {}),
    ("GET", "/v1/reconciliations/{reconciliation_id}/findings"): Row(ADMIN, EVERYTHING, 200),
    ("GET", "/v1/accounting"): Row(READ, EVERYTHING, 200),
    ("POST", "/v1/keys"): Row(ADMIN, EVERYTHING, 201, _KEY),
    ("GET", "/v1/keys"): Row(ADMIN, EVERYTHING, 200),
    ("GET", "/v1/keys/{key_id}"): Row(ADMIN, EVERYTHING, 200),
    ("POST", "/v1/keys/{key_id}/rotate"): Row(ADMIN, EVERYTHING, 200, {}),
    ("POST", "/v1/keys/{key_id}/revoke"): Row(ADMIN, EVERYTHING, 200),
    ("POST", "/v1/session"): Row(READ, CALLER, 201, shows_stored=False),
    # it ends a session, and these requests use none
    ("DELETE", "/v1/session"): Row(READ, CALLER, 404, shows_stored=False),
    ("GET", "/v1/me"): Row(READ, CALLER, 200, shows_stored=False),
    ("GET", "/v1/audit"): Row(ADMIN, SOME, 200),
}

# These show no stored data.
PUBLIC = {
    "/openapi.json",
    "/",
    "/console",
    "/console/",
    "/console/{name:path}",
    "/docs",
    "/reference",
    "/reference/oauth2-redirect",
    "/redoc",
    "/v1/session/ways",
    "/v1/session/oidc/begin",
    "/v1/session/oidc/callback",
    "/static-offline-docs",
}


def fill_body(body: Any, ids: Mapping[str, str]) -> Any:
    """Return a body with the ids of the model and of its project filled in."""
    if isinstance(body, dict):
        return {name: fill_body(value, ids) for name, value in body.items()}
    if not isinstance(body, str):
        return body
    for name in ("model_id", "project_id"):
        body = body.replace(f"{{{name}}}", ids[name])
    return body
