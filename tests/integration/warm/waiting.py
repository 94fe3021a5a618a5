"""A program for the tests of warm processes: it prints its folder, then exits or waits."""

import os
import signal
import sys

if __name__ == "__main__":
    print(os.environ["GIVEN"], os.getcwd(), flush=True)
    if sys.argv[1] == "end":
        sys.exit(int(sys.argv[2]))
    while True:
        signal.pause()
