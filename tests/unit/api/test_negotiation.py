"""Which type and which coding a request's headers ask for."""

from inference_store.api.negotiation import choose_coding, choose_type

LINES = "application/x-ndjson"
OFFERED = ("application/json", LINES)


def test_a_type_is_chosen() -> None:
    for accept, chosen in (
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        (LINES, LINES),
        ("Application/X-NDJSON ; q=0.9, text/plain", LINES),
        (f"{LINES}, */*", LINES),
        (f"*/*, {LINES}", LINES),
        (f"application/json, {LINES}", "application/json"),
        (f"{LINES}, application/json", LINES),
        (f"application/json;q=0.2, {LINES};q=0.3", LINES),
        ("application/json;q=0, */*", LINES),
        ("application/json; charset=utf-8", "application/json"),
        ("text/html", None),
        ("*/*;q=0", None),
        ("application/json;q=nonsense", None),
        ("application/json;q=nan", None),
        (",;,", None),
    ):
        assert choose_type(accept, OFFERED) == chosen, accept


def test_a_coding_is_chosen() -> None:
    for accept_encoding, chosen in (
        ("", None),
        ("gzip", "gzip"),
        ("X-GZIP", "gzip"),
        ("zstd", "zstd"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip;q=1.0, zstd;q=0.5", "gzip"),
        ("*", "zstd"),
        ("zstd;q=0, *", "gzip"),
        ("br, deflate", None),
        ("gzip;q=0", None),
        ("identity, gzip;q=0.5", None),
        ("identity;q=0.5, gzip", "gzip"),
    ):
        assert choose_coding(accept_encoding) == chosen, accept_encoding
