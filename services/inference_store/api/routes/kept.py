"""Why an inference is kept, and until when."""

from inference_store.access.rights import Right
from inference_store.api.access import Asking, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading
from inference_store.api.paths import InferenceId, ModelId
from inference_store.api.policy_changes import format_rule
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.kept import ShownKept
from inference_store.erasure.preview import explained
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
    """Which rule of which policy decides about the newest inference of that id, when its parts
    go by it, which limits apply beside, and the oldest hold that keeps it."""
    registration, extent = await access.find_model_to_query(connection, model_id)
    known = extent.spans
    same = await lookup.find_by_id(connection, registration.model, inference_id, known=known)
    kept = await explained.explain(connection, registration.model, same.newest)
    rule, hold = kept.decided_by, kept.held_by
    return Answer(
        {
            "uid": same.newest,
            "received_at": kept.received_at,
            "decided_by": rule and format_rule(rule.of, rule.number, rule.rule.name),
            "input_goes_at": kept.input_goes_at,
            "response_goes_at": kept.response_goes_at,
            "inference_goes_at": kept.inference_goes_at,
            "limits": [
                {"name": each.name, "most": each.most, "level": each.of.level}
                for each in kept.limits
            ],
            "held_by": None if hold is None else {"id": hold.id, "name": hold.name},
        }
    )
