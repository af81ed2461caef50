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


class Handles:
    """One end. Use it on one event loop."""

    def __init__(self, end: socket.socket, services: Mapping[str, Callable[..., None]]) -> None:
        """Each of the ``services`` gets the descriptors of a message, which are then its own, and the arguments."""
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
        data, buffers = encode((name, arguments))
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
        name, arguments = _decoded(data)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._services[name](descriptors, *arguments)

    def close(self) -> None:
        """Close this end. Can be repeated."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket)
            self._socket.close()


def _decoded(data: bytes) -> tuple[str, tuple[Any, ...]]:
    try:
        name, arguments = decode(memoryview(data), ())
    except pickle.UnpicklingError as error:
        raise AssertionError("both ends are the same program") from error
    return name, arguments
