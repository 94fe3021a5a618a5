"""What the tests of warm processes run: say where it is, then end with a code, or wait."""

import os
import signal
import sys

if __name__ == "__main__":
    print(os.environ["GIVEN"], os.getcwd(), flush=True)
    if sys.argv[1] == "end":
        sys.exit(int(sys.argv[2]))
    while True:
        signal.pause()
