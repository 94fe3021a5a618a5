"""Metadata that is forwarded, and its form as headers."""

from inference_store.proxy.grpc.metadata import metadata_as_headers, select_metadata


def test_callers_metadata_passes_and_the_connections_does_not() -> None:
    metadata = (
        ("user-agent", "grpc-python"),
        ("x-a", "1"),
        ("te", "trailers"),
        ("x-a", "2"),
        (":authority", "somewhere"),
        ("grpc-timeout", "1S"),
        ("grpc-status-details-bin", b"\0"),
        ("grpc-trace-bin", b"\1"),
    )
    details, trace = ("grpc-status-details-bin", b"\0"), ("grpc-trace-bin", b"\1")
    assert select_metadata(metadata) == (("x-a", "1"), ("x-a", "2"), details, trace)
    assert select_metadata(None) == ()


def test_binary_values_are_kept_as_on_the_wire() -> None:
    assert metadata_as_headers((("a", "b"), ("c-bin", b"\0\xff\xfe\xfd"))) == (
        ("a", "b"),
        ("c-bin", "AP/+/Q"),
    )
    assert metadata_as_headers(None) == ()
