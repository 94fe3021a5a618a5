"""Photographs that wheels carry, and requests that send them."""

import base64
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ASTRONAUT, COINS = "astronaut.png", "coins.png"
"""One face that the cascade is sure of, in colour; none, in grey."""


def photograph(name: str = ASTRONAUT) -> bytes:
    """The file of a photograph of scikit-image's wheel."""
    found = find_spec("skimage")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "data" / name).read_bytes()


def pictures(*images: bytes, **parameters: Any) -> dict[str, Any]:
    """A request of chariot-v2-kserve: an image an input."""
    inputs = [
        {
            "name": f"image-{index}",
            "datatype": "BYTES",
            "shape": [1],
            "data": [base64.b64encode(image).decode()],
            "parameters": {"action": "predict"},
        }
        for index, image in enumerate(images)
    ]
    return {"id": "pictures", "parameters": parameters, "inputs": inputs}
