from inference_store.index.sidecars import without_request


def test_deletes_only_the_request() -> None:
    blob = b'{"a": 1.50, "request": {"prompt": "secret"}, "b": ["\\ud800", 1e999]}'
    rest = without_request(blob)
    assert rest == b'{"a": 1.50, "b": ["\\ud800", 1e999]}'


def test_leaves_blobs_without_a_request_alone() -> None:
    for blob in (b"", b"not json", b"[1]", b'"request"', b'{"a": {"request": 1}}', b"\xff\xfe"):
        assert without_request(blob) is None, blob


def test_bytes_that_are_not_utf_8_survive() -> None:
    rest = without_request(b'{"a": "\xff", "request": 1}')
    assert rest == b'{"a": "\\udcff"}'
