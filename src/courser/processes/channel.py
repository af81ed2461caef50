"""A stream socket between two processes of a server, which carries whole messages.

What ``send`` was given may be changed as soon as it returns: the kernel has it, or it was copied. Small messages of one
turn of the event loop are sent together.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from courser.processes.encoding import decode, encode

_HEAD = struct.Struct("<III")
"""Bytes of the pickle; number of buffers; bytes of all buffers. Their sizes, the pickle and the buffers follow."""
_HEAD_SIZE = _HEAD.size
_unpack_head = _HEAD.unpack_from
_SIZE = struct.Struct("<I")
_ROOM_SIZE = 256 * 1024
"""Bytes that are received at a time. Larger messages get memory of their own."""
_SOCKET_SIZE = 4 * 1024 * 1024
"""Bytes that are asked for as the socket's buffers. The kernel gives what its limits allow."""
_SMALL_SIZE_MAX = 16 * 1024
"""Bytes of buffers that are copied, so that their message is sent with others of this turn. The other process is woken
once for all of them, which takes longer than the copies."""
UNREAD_SIZE_MAX = 64 * 1024 * 1024
"""Bytes that may wait for a process that does not read. Beyond that, requests that would add to them are refused."""
_PIECE_COUNT_MAX = 1024
"""Pieces of memory that the kernel takes in one call (``IOV_MAX``)."""
_READ_COUNT_MAX = 4
"""Reads without a pause: connections have their turn in between."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new channel."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in ends:
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_SIZE)
    return ends


class Channel:
    """One end. Use it on one event loop."""

    def __init__(self, end: socket.socket, on_message: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        """``on_lost`` is called once, when the other end is gone; not after ``close``."""
        end.setblocking(False)
        self._socket = end
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._room = bytearray(_ROOM_SIZE)
        self._start = self._end = 0
        """Which bytes of the room are received but not used."""
        self._large: bytearray | None = None
        """A message that does not fit into the room."""
        self._large_end = 0
        self._small: list[bytes] = []
        """Messages that are sent at the end of this turn."""
        self._left: deque[memoryview] = deque()
        """What the kernel has not taken yet; copies."""
        self._left_size = 0
        """Bytes of that."""
        self.is_open = True
        self._loop.add_reader(end, self._receive)

    # --- sending ---

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message. Does nothing if the other end is gone."""
        if not self.is_open:
            return
        data, buffers = encode(message)
        if not buffers:
            self._send_soon(_HEAD.pack(len(data), 0, 0) + data)
            return
        buffers_size = sum(map(len, buffers))
        head = _HEAD.pack(len(data), len(buffers), buffers_size)
        sizes = b"".join([_SIZE.pack(len(buffer)) for buffer in buffers])
        if buffers_size <= _SMALL_SIZE_MAX:
            self._send_soon(b"".join((head, sizes, data, *buffers)))
            return
        self._write([self._after_small(head, sizes, data), *buffers])

    def _send_soon(self, message: bytes) -> None:
        if not self._small:
            self._loop.call_soon(self._flush)
        self._small.append(message)

    def _flush(self) -> None:
        if self._small and self.is_open:
            self._write([self._after_small()])

    def _after_small(self, *parts: bytes) -> bytes:
        """What is sent next, after the small messages of this turn."""
        small, self._small = self._small, []
        return b"".join((*small, *parts))

    def _write(self, pieces: list[Any]) -> None:
        sent = 0
        if not self._left:
            try:
                sent = self._socket.send(pieces[0]) if len(pieces) == 1 else self._send_pieces(pieces)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.lose()
                return
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
                continue
            if not self._left:
                self._loop.add_writer(self._socket, self._write_left)
            self._left.append(memoryview(bytes(memoryview(piece)[sent:])))
            self._left_size += len(piece) - sent
            sent = 0

    def _send_pieces(self, pieces: list[Any]) -> int:
        """Send as much as the kernel takes now: the number of bytes."""
        if len(pieces) <= _PIECE_COUNT_MAX:
            return self._socket.sendmsg(pieces)
        sent = 0
        for start in range(0, len(pieces), _PIECE_COUNT_MAX):
            some = pieces[start : start + _PIECE_COUNT_MAX]
            try:
                count = self._socket.sendmsg(some)
            except BlockingIOError:
                break
            sent += count
            if count < sum(map(len, some)):
                break
        return sent

    def _write_left(self) -> None:
        while self._left:
            piece = self._left[0]
            try:
                sent = self._socket.send(piece)
            except BlockingIOError:
                return
            except OSError:
                self.lose()
                return
            self._left_size -= sent
            if sent < len(piece):
                self._left[0] = piece[sent:]
                return
            self._left.popleft()
        self._loop.remove_writer(self._socket)

    @property
    def is_congested(self) -> bool:
        """Whether the other end does not read what was sent to it."""
        # Asked for each request that is forwarded: there may be a great many pieces.
        return self._left_size > UNREAD_SIZE_MAX

    # --- receiving ---

    def _receive(self) -> None:
        for _ in range(_READ_COUNT_MAX):
            if not self.is_open or not self._receive_some():
                return

    def _receive_some(self) -> bool:
        """Whether there may be more."""
        large = self._large
        place = memoryview(self._room)[self._end :] if large is None else memoryview(large)[self._large_end :]
        try:
            count = self._socket.recv_into(place)
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        if not count:
            self.lose()
            return False
        is_filled = count == len(place)
        if large is not None:
            self._large_end += count
            if self._large_end == len(large):
                self._large = None
                self._take_large(memoryview(large))
        else:
            self._end += count
            self._take_whole_messages()
        return is_filled

    def _take_whole_messages(self) -> None:
        room, end = memoryview(self._room), self._end
        while self.is_open and end - self._start >= _HEAD_SIZE:
            start = self._start
            data_size, count, buffers_size = _unpack_head(room, start)
            size = _HEAD_SIZE + count * _SIZE.size + data_size + buffers_size
            if size <= end - start:
                self._start = start + size
                self._take(room, start, data_size, count, is_reused=True)
            elif size > _ROOM_SIZE // 2:
                there = room[start:end]
                self._large = bytearray(size)
                self._large[: len(there)] = there
                self._large_end = len(there)
                self._start = end
            else:
                break
        left = end - self._start
        if not left:
            self._start = self._end = 0
        elif end > _ROOM_SIZE // 2:
            self._room[:left] = bytes(room[self._start : end])
            self._start, self._end = 0, left

    def _take_large(self, message: memoryview) -> None:
        data_size, count, _ = _unpack_head(message)
        self._take(message, 0, data_size, count, is_reused=False)

    def _take(self, memory: memoryview, start: int, data_size: int, count: int, *, is_reused: bool) -> None:
        """Hand on a message that is there. Its buffers are copied if their memory is used again."""
        data_start = start + _HEAD_SIZE + count * _SIZE.size
        position = data_end = data_start + data_size
        buffers = []
        for index in range(count):
            (size,) = _SIZE.unpack_from(memory, start + _HEAD_SIZE + index * _SIZE.size)
            buffer = memory[position : position + size]
            buffers.append(memoryview(bytes(buffer)) if is_reused else buffer)
            position += size
        on_message = self._on_message
        on_message(decode(memory[data_start:data_end], buffers))

    # --- the end ---

    def lose(self) -> None:
        """Give the other end up, as if it were gone."""
        if self.is_open:
            self._shut()
            self._on_lost()

    def close(self) -> None:
        """Send what is left of this turn, as far as the kernel takes it, and close this end. Can be repeated."""
        if self.is_open:
            if self._small and not self._left:
                with contextlib.suppress(OSError):
                    self._socket.send(self._after_small())
            self._shut()

    def _shut(self) -> None:
        self.is_open = False
        self._small.clear()
        self._left.clear()
        self._left_size = 0
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
