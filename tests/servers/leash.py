"""Run one command, and end it when its owner is gone, for whatever reason.

Run as a script: leash.py SIGNAL FOLDER USER COMMAND... Standard input is a pipe whose other end
only the owner holds. The kernel closes that end when the owner dies, by `kill -9` too; then the
command gets SIGNAL, after five seconds SIGKILL, and FOLDER (its data; "" for none) is removed.
The command runs as USER ("" for the same user). Its process id is the one line printed.

Why not PR_SET_PDEATHSIG in the server alone: that signal follows the thread that started the
server, so a server restarted from a worker thread would die with that thread. Here it only
guards the leash itself, which has one thread: kill the leash and the command dies.
"""

import ctypes
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
PATIENCE_SECONDS = 5.0


def main(last_signal: str, folder: str, user: str, *command: str) -> int:
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    child = _start(command, user)
    os.write(1, b"%d\n" % child.pid)
    while child.poll() is None:
        ready, _, _ = select.select([0, ended], [], [])
        if 0 in ready:
            _end(child, getattr(signal, last_signal), folder)
        elif ended in ready:
            os.read(ended, 1)  # a child that was only paused wakes us too
    code = child.returncode
    return 128 - code if code < 0 else code


def _start(command: tuple[str, ...], user: str) -> subprocess.Popen[bytes]:
    # The C library is loaded before the fork: after it, only the call itself is safe.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        user=user or None,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
        # Runs after the change of user, which would have cleared the setting. Safe: one thread.
        preexec_fn=prctl and (lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)),  # noqa: PLW1509
    )


def _end(child: subprocess.Popen[bytes], last_signal: signal.Signals, folder: str) -> None:
    child.send_signal(last_signal)
    try:
        child.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
