"""`python -m tests.readers`: have the readers there before the tests ask for them."""

import sys

from tests.servers.__main__ import print_locations

from .environment import find_readers, find_ultralytics

if __name__ == "__main__":
    sys.exit(print_locations({"readers": find_readers, "ultralytics": find_ultralytics}))
