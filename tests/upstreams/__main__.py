"""`python -m tests.upstreams`: have the upstreams there before the tests ask for them."""

import sys

from tests.servers.__main__ import print_locations

from .environment import find_upstreams
from .model_servers import find_huggingface, find_kserve, find_triton

if __name__ == "__main__":
    finders = {
        "upstreams": find_upstreams,
        "huggingface": find_huggingface,
        "triton": find_triton,
        "kserve": find_kserve,
    }
    sys.exit(print_locations(finders))
