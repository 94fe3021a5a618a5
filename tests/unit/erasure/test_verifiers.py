"""The verifiers of `examples/` run with what an auditor's machine has."""

from pathlib import Path

_EXAMPLES = Path(__file__).parents[3] / "examples"


def test_they_call_nothing_that_debian_12_lacks() -> None:
    """Its cryptography is 38; `private_bytes_raw` and `public_bytes_raw` came with 40."""
    for name in ("verify_certificates.py", "verify_entry.py"):
        assert "_bytes_raw" not in (_EXAMPLES / name).read_text(), name
