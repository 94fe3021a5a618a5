"""The plugins and fixtures of all tests: the servers, and the databases and topics on them."""

import os
import signal

from tests import properties

# gRPC would start its threads again in each process that a test starts, between fork and exec, and
# these end the process when its files are closed.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# A shell starts what runs in its background with SIGINT ignored, and so would each process that a
# test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.runs.plugin",
    "tests.servers.plugin",
    "tests.runs.rings",
    "tests.servers.fixtures",
    "tests.servers.secured",
    "tests.upstreams.fixtures",
]

properties.register()
