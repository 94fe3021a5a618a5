"""`python -m tests.warm SOCKET`: import everything, then fork a process for each request.

A request is one connection: a line of JSON `{module, arguments, environment, folder}`, and beside
it two open files, for standard output and error. The answer is a line with the process id, later
one with the exit code (128 + n after signal n). The connection is the leash: when its other end is
gone, by `kill -9` too, the process is killed, as tests/servers/leash.py does it.
"""

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from inference_store.cli.main import COMMANDS, import_command

_MOST_BYTES = 1024 * 1024
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def main(path: str) -> None:
    """Import all commands, and serve until killed."""
    for name in COMMANDS.keys() - {"demo"}:
        import_command(name)
    gc.collect()
    gc.freeze()  # else the first collection in each process would copy every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who watch: no zombies
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _watch(connection)
                return  # the process that was asked for has come to its end
            connection.close()


def _watch(connection: socket.socket) -> None:
    """Fork the process that was asked for; say its id and its end; kill it if nobody waits."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, files = _receive(connection)
    child = os.fork()
    if child == 0:
        connection.close()
        _run(request, files)
        return
    connection.sendall(b"%d\n" % child)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([connection.fileno(), ended], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    _leave(connection, 128 - code if code < 0 else code)


def _leave(connection: socket.socket, code: int) -> NoReturn:
    try:
        connection.sendall(b"%d\n" % code)
    except OSError:  # whoever asked is gone
        os._exit(1)
    os._exit(0)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The request and its files, however many pieces the environment comes in."""
    data, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, 2)
    while data and not data.endswith(b"\n"):
        data += connection.recv(_MOST_BYTES) or os._exit(1)
    return json.loads(data), files


def _run(request: dict[str, Any], files: list[int]) -> None:
    """Be the process that was asked for, up to its end; it leaves as an interpreter does."""
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.modules.pop(request["module"], None)  # it runs again, as __main__
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
