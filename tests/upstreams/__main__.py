"""`python -m tests.upstreams`: have the upstreams there before the tests ask for them."""

import sys

from tests.servers.__main__ import print_locations

from .environment import find_upstreams
from .huggingface import find_huggingface
from .kserve import find_kserve
from .triton import find_triton

if __name__ == "__main__":
    finders = {
        "upstreams": find_upstreams,
        "huggingface": find_huggingface,
        "triton": find_triton,
        "kserve": find_kserve,
    }
    sys.exit(print_locations(finders))
