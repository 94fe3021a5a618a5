"""The overview of a model: its first page in the console, in one answer."""

from inference_store.access.rights import Right
from inference_store.index import unsettled
from inference_store.query.deadline import Deadline
from inference_store.query.overview import Overview, read_overview
from inference_store.query.preparation import QueryRequest, prepare

from .access import Asking
from .answer import Answer, Shown
from .dependencies import Querying
from .fields import InQuery, ReceivedParameters
from .http import OF_MODEL, ModelId
from .inference_pages import limit_query_time
from .routing import Router


class ShownOverview(Overview, Shown):
    """What a model did in a window of time, and what needs attention."""

    model_id: str
    dead_letters: int | None
    """Events of the model that could not be indexed and wait for a decision, whenever they came;
    null for a caller without `admin`. At most 10,000 are counted, as of parked events."""
    parked_events: int | None
    """Events of the model that wait for an object."""


router = Router("inferences")
_NARROW = "The overview took too long: narrow received_from and received_to."


@router.add(f"GET {OF_MODEL}/overview", Right.READ, "Read the overview of a model")
async def get_overview(
    model_id: ModelId, window: InQuery[ReceivedParameters], connection: Querying, access: Asking
) -> Answer[ShownOverview]:
    """Inferences, errors, latency, labels and scores over time, and what needs attention. Counts
    of inferences, errors and predictions are exact; `sampled` says what the others are made of."""
    model, extent = await access.find_model_to_query(connection, model_id)
    since, until = window.received_from, window.received_to
    request = QueryRequest(since=since, until=until)
    query = (await prepare(connection, model.model, request, extent)).query
    deadline = Deadline.after(access.settings.query_timeout_seconds)
    with limit_query_time("overview", _NARROW, query):
        overview = await read_overview(connection, query, deadline, since=since, until=until)
    waiting = {"dead_letters": ("open", "redrive"), "parked_events": ("parked",)}
    may_know, id = access.has_right(Right.ADMIN, model), model.model_id
    counts = {
        name: await unsettled.count_waiting(connection, id, states) if may_know else None
        for name, states in waiting.items()
    }
    return Answer(ShownOverview.show(overview, model_id=id, **counts))
