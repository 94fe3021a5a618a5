"""Reading a Status, also one that says little."""

from inference_store.grpc_messages import message
from inference_store.proxy.omi_bridge.container_status import parse_seconds, read_status


def test_durations_as_containers_write_them() -> None:
    for text, seconds in (
        ("60s", 60.0),
        ("1.5m", 90.0),
        ("500ms", 0.5),
        ("2 h", 7200.0),
        ("30", 30.0),
        ("10 seconds", 10.0),
        ("5 minutes", 300.0),
        ("", None),
        ("0s", None),
        ("soon", None),
        ("-3s", None),
    ):
        assert parse_seconds(text) == seconds


def test_an_empty_status_is_a_model_of_one_item_at_a_time() -> None:
    about = read_status(message("StatusResponse")())
    assert (about.batch_size, about.run_seconds, list(about.inputs)) == (1, None, [])
