"""Starting and ending further processes."""

import asyncio
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
"""Seconds until a process that was asked to end is killed, and as long again until it is left behind: one that waits
for a disk that hangs does not end before the disk answers."""
_POLL_PAUSE = 0.01
"""Seconds between looks whether a process has ended."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that was started, and our ends of its sockets."""

    number: int
    process: subprocess.Popen[bytes]
    channel: socket.socket
    handles: socket.socket

    def kill(self) -> None:
        """End the process now."""
        self.process.kill()

    async def ended(self) -> None:
        """Wait until it is gone: nothing writes to its partitions any more."""
        # Not in a thread: nobody could stop waiting for a process that does not end.
        while self.process.poll() is None:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(_POLL_PAUSE)

    async def is_ended(self) -> bool:
        """Wait for a process that was killed. False if it does not end in time."""
        try:
            async with asyncio.timeout(_STOP_PATIENCE):
                await self.ended()
        except TimeoutError:
            return False
        return True

    async def let_go(self) -> None:
        """Wait until a process has ended that was asked to."""
        if not await self.is_ended():
            self.kill()
            await self.is_ended()


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
