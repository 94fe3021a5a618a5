import logging

from inference_store.platform.repeats import say_less


def test_a_library_says_each_kind_of_thing_once() -> None:
    logger = logging.getLogger("chatterbox.inner")
    said: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger.addHandler(Listening())
    say_less("chatterbox")
    say_less("chatterbox")
    for port in (1, 2, 3):
        logger.warning("no connection to %d", port)
        logger.warning("no coordinator")
    assert said == ["no connection to 1", "no coordinator"]
