import logging

from inference_store.platform.log_throttle import throttle_logs


def test_logs_each_kind_of_message_of_a_library_once() -> None:
    logger = logging.getLogger("chatterbox.inner")
    logged: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())

    logger.addHandler(Listening())
    throttle_logs("chatterbox")
    throttle_logs("chatterbox")
    for port in (1, 2, 3):
        logger.warning("no connection to %d", port)
        logger.warning("no coordinator")
    assert logged == ["no connection to 1", "no coordinator"]
