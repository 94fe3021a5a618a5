"""Explains why an inference is kept, and until when."""

from inference_store.access.rights import Right
from inference_store.api.access import Asking, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading
from inference_store.api.paths import InferenceId, ModelId
from inference_store.api.policy_changes import show_rule
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.inference_retention import PendingRule, ShownKept, ShownLimit
from inference_store.api.schemas.policies import DecidedBy
from inference_store.erasure.policies import EffectiveRule
from inference_store.erasure.preview import explanation
from inference_store.query import lookup

router = make_router("retention")


@router.get(
    "/models/{model_id}/inferences/{inference_id}/retention",
    response_model=ShownKept,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ),
    summary="Why an inference is kept",
)
async def get_retention(
    model_id: ModelId, inference_id: InferenceId, connection: Reading, access: Asking
) -> Answer:
    """Which rule of which policy decides about the newest inference of that id, and which one once
    what is pending has begun; when its parts go by both, which limits apply beside, and the oldest
    hold that keeps it."""
    registration, extent = await access.find_model_to_query(connection, model_id)
    known_spans = extent.spans
    same = await lookup.find_by_id(connection, registration.model, inference_id, spans=known_spans)
    explained = await explanation.explain_retention(connection, registration.model, same.newest)
    pending = explained.pending
    return Answer(
        ShownKept.show(
            explained,
            uid=same.newest,
            decided_by=_show_rule(explained.decided_by),
            pending=pending
            and PendingRule.show(pending, decided_by=_show_rule(pending.decided_by)),
            limits=[ShownLimit.show(limit, level=limit.of.level) for limit in explained.limits],
        )
    )


def _show_rule(rule: EffectiveRule | None) -> DecidedBy | None:
    return None if rule is None else show_rule(rule.of, rule.number, rule.rule.name)
