"""The right that every route needs, in one table that the tests walk. Add a row for a new route."""

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


_M = "/v1/models/{model_id}"
_P = "/v1/projects/{project_id}"
_I = f"{_M}/inferences/{{inference_id}}"
_RULES = {"rules": [{"keep_input": "P30D", "keep_inference": "P1Y"}]}
_ITEM = {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}]}
_HOLD = {"name": "x", "reason": "y", "model_id": "{model_id}", "filter": "ok"}
_VIEW = {"name": "x", "model_id": "{model_id}", "filter": "ok"}
_SHARED = (Right.ANNOTATE,)
_KEY = {"name": "x", "grants": [{"rights": ["read"]}]}

TABLE: dict[tuple[str, str], Row] = {
    ("GET", "/v1/models"): Row(Right.READ, Over.SOME, 200),
    ("GET", "/v1/projects"): Row(Right.READ, Over.SOME, 200),
    ("GET", _M): Row(Right.READ, Over.MODEL, 200),
    ("PUT", _M): Row(Right.ADMIN, Over.MODEL, 200, {"project_id": "{model_id}-project"}),
    ("POST", f"{_M}/preview"): Row(
        Right.ADMIN, Over.MODEL, 200, {"project_id": "{model_id}-project"}
    ),
    ("DELETE", _M): Row(Right.ADMIN, Over.MODEL, 409),
    ("GET", f"{_M}/metadata-keys"): Row(Right.READ, Over.MODEL, 200),
    ("GET", f"{_M}/queryables"): Row(Right.READ, Over.MODEL, 200),
    ("GET", "/v1/conformance"): Row(Right.READ, Over.SOME, 200, shows_stored=False),
    ("GET", f"{_M}/inferences"): Row(Right.READ, Over.MODEL, 200),
    ("POST", f"{_M}/inferences/query"): Row(Right.READ, Over.MODEL, 200, {}),
    ("POST", f"{_M}/inferences/count"): Row(Right.READ, Over.MODEL, 200, {}),
    ("POST", f"{_M}/inferences/neighbours"): Row(
        Right.READ, Over.MODEL, 200, {"uid": "019ac3f2-7c00-8123-9abc-0123456789ab"}
    ),
    ("POST", "/v1/inferences/query"): Row(Right.READ, Over.SOME, 200, {}),
    ("POST", "/v1/inferences/count"): Row(Right.READ, Over.SOME, 200, {}),
    ("POST", f"{_M}/inferences/aggregate"): Row(Right.READ, Over.MODEL, 200, {}),
    ("POST", "/v1/inferences/aggregate"): Row(
        Right.READ, Over.SOME, 200, {"group_by": ["model_id", "project_id"]}
    ),
    ("GET", f"{_M}/inferences/follow"): Row(
        Right.READ, Over.MODEL, 200, query="?seconds=0", shows_stored=False
    ),
    ("GET", _I): Row(Right.READ, Over.MODEL, 200),
    ("DELETE", _I): Row(Right.DELETE, Over.MODEL, 202),
    ("GET", f"{_I}/data"): Row(Right.READ_INPUTS, Over.MODEL, 200),
    ("GET", f"{_I}/response"): Row(Right.READ, Over.MODEL, 200),
    ("GET", f"{_I}/metadata"): Row(Right.READ_INPUTS, Over.MODEL, 200),
    ("POST", f"{_I}/metadata"): Row(Right.ANNOTATE, Over.MODEL, 200, _ITEM),
    ("GET", f"{_I}/drawing"): Row(Right.READ, Over.MODEL, 200),
    # its input is no picture
    ("GET", f"{_I}/thumbnail"): Row(Right.READ_INPUTS, Over.MODEL, 422),
    ("POST", f"{_M}/inferences/thumbnails"): Row(
        Right.READ_INPUTS, Over.MODEL, 200, {"uids": ["019ac3f2-7c00-8123-9abc-0123456789ab"]}
    ),
    ("GET", f"{_I}/retention"): Row(Right.READ, Over.MODEL, 200),
    ("GET", f"{_M}/retention-policy"): Row(Right.READ, Over.MODEL, 200),
    ("PUT", f"{_M}/retention-policy"): Row(Right.ADMIN, Over.MODEL, 200, _RULES),
    ("DELETE", f"{_M}/retention-policy"): Row(Right.ADMIN, Over.MODEL, 204),
    ("POST", f"{_M}/retention-policy/preview"): Row(Right.ADMIN, Over.MODEL, 200, _RULES),
    ("DELETE", f"{_M}/retention-policy/pending"): Row(Right.ADMIN, Over.MODEL, 204),
    ("POST", f"{_P}/retention-policy/preview"): Row(Right.ADMIN, Over.PROJECT, 200, _RULES),
    ("DELETE", f"{_P}/retention-policy/pending"): Row(Right.ADMIN, Over.PROJECT, 204),
    ("POST", "/v1/retention-policy/preview"): Row(Right.ADMIN, Over.EVERYTHING, 200, _RULES),
    ("DELETE", "/v1/retention-policy/pending"): Row(Right.ADMIN, Over.EVERYTHING, 204),
    ("GET", f"{_M}/retention-policy/history"): Row(Right.READ, Over.MODEL, 200),
    ("GET", f"{_P}/retention-policy"): Row(Right.READ, Over.PROJECT, 200),
    ("PUT", f"{_P}/retention-policy"): Row(Right.ADMIN, Over.PROJECT, 200, _RULES),
    ("DELETE", f"{_P}/retention-policy"): Row(Right.ADMIN, Over.PROJECT, 204),
    ("GET", f"{_P}/retention-policy/history"): Row(Right.READ, Over.PROJECT, 200),
    ("GET", "/v1/retention-policy"): Row(Right.READ, Over.SOME, 200, shows_stored=False),
    ("PUT", "/v1/retention-policy"): Row(Right.ADMIN, Over.EVERYTHING, 200, _RULES),
    ("DELETE", "/v1/retention-policy"): Row(Right.ADMIN, Over.EVERYTHING, 204),
    ("GET", "/v1/retention-policy/history"): Row(Right.READ, Over.SOME, 200, shows_stored=False),
    ("POST", f"{_M}/retention-policy/run"): Row(Right.ADMIN, Over.MODEL, 202),
    ("POST", f"{_P}/retention-policy/run"): Row(Right.ADMIN, Over.PROJECT, 202),
    ("POST", "/v1/retention-policy/run"): Row(Right.ADMIN, Over.EVERYTHING, 202),
    ("GET", "/v1/retention/runs"): Row(Right.READ, Over.SOME, 200),
    ("GET", "/v1/retention/runs/{run_id}"): Row(Right.READ, Over.SOME, 200),
    ("GET", "/v1/certificates"): Row(Right.READ, Over.SOME, 200),
    ("GET", "/v1/certificates/keys"): Row(Right.READ, Over.SOME, 200, shows_stored=False),
    ("GET", "/v1/certificates/{certificate}"): Row(Right.READ, Over.SOME, 200),
    ("GET", "/v1/certificates/{certificate}/leaves"): Row(Right.READ, Over.SOME, 200),
    ("GET", "/v1/erasures"): Row(Right.READ, Over.SOME, 200),
    ("GET", "/v1/erasures/{erasure_id}"): Row(Right.READ, Over.SOME, 200),
    ("POST", f"{_M}/erasures"): Row(Right.DELETE, Over.MODEL, 202, {"filter": "NOT ok"}),
    ("POST", f"{_M}/inferences/delete"): Row(
        Right.DELETE, Over.MODEL, 202, {"inference_ids": ["one"]}
    ),
    ("POST", "/v1/erasures"): Row(Right.DELETE, Over.SOME, 202, {"filter": "ok"}),
    ("POST", "/v1/erasures/{erasure_id}/cancel"): Row(Right.DELETE, Over.SOME, 202),
    ("POST", "/v1/erasures/{erasure_id}/give-up"): Row(
        Right.DELETE, Over.SOME, 409, {"reason": "over"}
    ),
    ("POST", "/v1/holds"): Row(Right.HOLD, Over.SOME, 201, _HOLD, names_model=True),
    ("GET", "/v1/holds"): Row(Right.HOLD, Over.SOME, 200),
    ("GET", "/v1/holds/{hold_id}"): Row(Right.HOLD, Over.SOME, 200),
    ("POST", f"{_M}/exports"): Row(Right.EXPORT, Over.MODEL, 202, {"filter": "ok"}),
    ("GET", "/v1/exports"): Row(Right.EXPORT, Over.SOME, 200),
    ("GET", "/v1/exports/{export_id}"): Row(Right.EXPORT, Over.SOME, 200),
    ("POST", "/v1/exports/{export_id}/cancel"): Row(Right.EXPORT, Over.SOME, 202),
    ("GET", "/v1/exports/{export_id}/parts"): Row(Right.EXPORT, Over.SOME, 200),
    ("GET", "/v1/exports/{export_id}/parts/{number}"): Row(Right.EXPORT, Over.SOME, 404),
    ("GET", "/v1/exports/{export_id}/erased"): Row(
        Right.EXPORT, Over.SOME, 200, shows_stored=False
    ),
    ("PUT", "/v1/holds/{hold_id}"): Row(Right.HOLD, Over.SOME, 200, _HOLD),
    ("DELETE", "/v1/holds/{hold_id}"): Row(Right.HOLD, Over.SOME, 200, query="?reason=over"),
    ("GET", "/v1/holds/{hold_id}/held"): Row(Right.HOLD, Over.SOME, 200),
    ("GET", "/v1/holds/{hold_id}/history"): Row(Right.HOLD, Over.SOME, 200),
    ("POST", "/v1/views"): Row(Right.READ, Over.SOME, 201, _VIEW, names_model=True),
    ("GET", "/v1/views"): Row(Right.READ, Over.SOME, 200),
    ("GET", "/v1/views/{view_id}"): Row(Right.READ, Over.SOME, 200),
    ("PATCH", "/v1/views/{view_id}"): Row(
        Right.READ, Over.SOME, 200, {"name": "other"}, also=_SHARED
    ),
    ("DELETE", "/v1/views/{view_id}"): Row(Right.READ, Over.SOME, 204, also=_SHARED),
    ("GET", "/v1/dead-letters"): Row(Right.ADMIN, Over.SOME, 200),
    ("GET", "/v1/dead-letters/{id}"): Row(Right.ADMIN, Over.SOME, 200),
    ("POST", "/v1/dead-letters/redrive"): Row(Right.ADMIN, Over.SOME, 202, {}),
    ("POST", "/v1/dead-letters/{id}/redrive"): Row(Right.ADMIN, Over.SOME, 202),
    ("POST", "/v1/dead-letters/{id}/discard"): Row(Right.ADMIN, Over.SOME, 200, {"reason": "x"}),
    ("GET", "/v1/reconciliations"): Row(Right.ADMIN, Over.EVERYTHING, 200),
    ("POST", "/v1/reconciliations"): Row(Right.ADMIN, Over.EVERYTHING, 202, {}),
    ("GET", "/v1/reconciliations/{reconciliation_id}"): Row(Right.ADMIN, Over.EVERYTHING, 200),
    ("POST", "/v1/reconciliations/{reconciliation_id}/erasures"): Row(
        Right.DELETE, Over.EVERYTHING, 409, {}
    ),
    ("GET", "/v1/reconciliations/{reconciliation_id}/findings"): Row(
        Right.ADMIN, Over.EVERYTHING, 200
    ),
    ("GET", "/v1/accounting"): Row(Right.READ, Over.EVERYTHING, 200),
    ("POST", "/v1/keys"): Row(Right.ADMIN, Over.EVERYTHING, 201, _KEY),
    ("GET", "/v1/keys"): Row(Right.ADMIN, Over.EVERYTHING, 200),
    ("GET", "/v1/keys/{key_id}"): Row(Right.ADMIN, Over.EVERYTHING, 200),
    ("POST", "/v1/keys/{key_id}/rotate"): Row(Right.ADMIN, Over.EVERYTHING, 200, {}),
    ("POST", "/v1/keys/{key_id}/revoke"): Row(Right.ADMIN, Over.EVERYTHING, 200),
    ("POST", "/v1/session"): Row(Right.READ, Over.CALLER, 201, shows_stored=False),
    # it ends a session, and these requests use none
    ("DELETE", "/v1/session"): Row(Right.READ, Over.CALLER, 404, shows_stored=False),
    ("GET", "/v1/me"): Row(Right.READ, Over.CALLER, 200, shows_stored=False),
    ("GET", "/v1/audit"): Row(Right.ADMIN, Over.SOME, 200),
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


def fill_body(body: Any, model_id: str) -> Any:
    """Return a body with the model's id filled in."""
    if isinstance(body, dict):
        return {name: fill_body(value, model_id) for name, value in body.items()}
    return body.replace("{model_id}", model_id) if isinstance(body, str) else body
