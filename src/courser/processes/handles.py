"""A socket between two processes that carries file descriptors: listening sockets, ends of channels, connections."""

import asyncio
import os
import pickle
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from courser.processes.encoding import decode, encode

_MESSAGE_SIZE_MAX = 192 * 1024
"""Bytes of a message: what the kernel takes at once, with its usual limits."""
_DESCRIPTOR_COUNT_MAX = 64


def handle_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new socket."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


def are_left(count: int) -> bool:
    """Whether this process may have so many more descriptors."""
    found: list[int] = []
    try:
        for _ in range(count):
            found.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 - those before a failure count
    except OSError:
        return False
    finally:
        for descriptor in found:
            os.close(descriptor)
    return True


class Handles:
    """One end. Use it on one event loop."""

    def __init__(self, end: socket.socket, services: Mapping[str, Callable[..., None]]) -> None:
        """Each of the ``services`` gets the descriptors of a message, which are then its own, and the arguments.

        It gets no descriptors if this process has as many as it may have: the kernel drops those that do not fit.
        """
        end.setblocking(False)
        self._socket = end
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._receive)
        self._is_open = True

    def send(self, descriptors: Sequence[int], name: str, *arguments: object) -> None:
        """Send descriptors. The caller keeps its own.

        Raises:
            OSError: the other process is gone, or the message does not fit.
        """
        data, buffers = encode((name, arguments, len(descriptors)))
        assert not buffers, "what is sent here is small"
        if len(data) > _MESSAGE_SIZE_MAX:
            raise OSError(f"a message of {len(data)} bytes is too large")
        socket.send_fds(self._socket, [data], list(descriptors))

    def _receive(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MESSAGE_SIZE_MAX, _DESCRIPTOR_COUNT_MAX)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self.close()
            return
        name, arguments, count = _decoded(data)
        if len(descriptors) < count:
            for descriptor in descriptors:
                os.close(descriptor)
            descriptors = []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._services[name](descriptors, *arguments)

    def close(self) -> None:
        """Close this end. Can be repeated."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket)
            self._socket.close()


def _decoded(data: bytes) -> tuple[str, tuple[Any, ...], int]:
    try:
        name, arguments, count = decode(memoryview(data), ())
    except pickle.UnpicklingError as error:
        raise AssertionError("both ends are the same program") from error
    return name, arguments, count
