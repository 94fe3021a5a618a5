"""An event that the ingester cannot index, until somebody repairs what it lacks."""

from tests.console.conftest import Console, run_beside
from tests.console.test_erasures import make_captures
from tests.producer import Capture, Producer
from tests.servers.environment import PREFIX
from tests.servers.waiting import wait_until


def publish_poison(console: Console, model: str, number: int = 0) -> Capture:
    """Publish an event whose response is not in the bucket; wait until it is a dead letter."""
    [capture] = make_captures(model, number, 1)
    run_beside(_publish(console.environment, capture))
    wait_until(lambda: bool(find_letters(console, model)), seconds=180, what="a dead letter")
    return capture


def repair(console: Console, capture: Capture) -> None:
    """Put the response into the bucket."""
    run_beside(_put_response(console.environment, capture))


def find_letters(console: Console, model: str) -> list[int]:
    """The ids of a model's dead letters."""
    items = console.ask("GET", "/v1/dead-letters?reason=blob_missing&limit=1000")["items"]
    return [item["id"] for item in items if item["model_id"] == model]


async def _publish(environment: dict[str, str], capture: Capture) -> None:
    async with _make_producer(environment) as producer:
        await producer.put(capture, "data", "metadata")
        await producer.publish(capture.event)


async def _put_response(environment: dict[str, str], capture: Capture) -> None:
    await _make_producer(environment).put(capture, "response")


def _make_producer(environment: dict[str, str]) -> Producer:
    return Producer(environment, environment[f"{PREFIX}KAFKA_TOPIC"])
