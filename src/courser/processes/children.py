"""Starting and ending further processes."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

from courser.processes.channel import socket_pair
from courser.processes.handles import handle_pair

_PR_SET_PDEATHSIG = 1
_STOP_PATIENCE = 5.0
"""Seconds until a process that was asked to end is killed."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that was started, and our ends of its sockets."""

    number: int
    process: subprocess.Popen[bytes]
    channel: socket.socket
    handles: socket.socket

    def kill(self) -> None:
        """End it now, and wait until it is gone: nothing writes to its partitions any more."""
        self.process.kill()
        self.process.wait()

    def wait(self) -> None:
        """Wait until a process has ended that was asked to."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_PATIENCE)
        self.kill()


def start_child(number: int, module: str, lock_descriptor: int) -> Child:
    """Start a process that runs a module. It begins with nothing of ours but its sockets and the lock.

    The lock of the data directory is shared with it: as long as it lives, no other server gets the directory.

    Raises:
        OSError: there is no memory for it, or no descriptor. Nothing is left open.
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        ends: list[socket.socket] = []
        for make in (socket_pair, handle_pair):
            end, their_end = make()
            ours.callback(end.close)
            theirs.callback(their_end.close)
            ends += end, their_end
        channel, their_channel, handles, their_handles = ends
        descriptors = (their_channel.fileno(), their_handles.fileno(), lock_descriptor)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(os.getpid()), str(number), *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
        )
        ours.pop_all()
    return Child(number, process, channel, handles)


def end_with_parent(parent: int) -> None:
    """For a child: have the kernel kill this process when its parent ends, and leave signals to the parent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It has ended already.
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
