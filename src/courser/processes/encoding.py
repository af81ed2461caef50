"""Messages between the processes of one server, as bytes.

Pickled: both ends are the same program, and nobody else holds an end of the sockets that carry them. Large values, such
as the messages of a send or a poll, are not copied into the pickle: they follow it.
"""

import io
import pickle
from collections.abc import Sequence
from typing import Any

from courser.errors import CourserError
from courser.model.buffers import Buffer


def encode(message: object) -> tuple[bytes, list[memoryview]]:
    """The pickle of a message, and the memory that it refers to."""
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        buffers.append(buffer.raw())

    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=keep).dump(message)
    return stream.getvalue(), buffers


def decode(data: Buffer, buffers: Sequence[memoryview]) -> Any:
    """A message. It refers to the memory of ``buffers``."""
    return pickle.loads(data, buffers=buffers)


class _Pickler(pickle.Pickler):
    """Pickles what ``pickle`` does not, or not well."""

    def reducer_override(self, value: object) -> Any:
        if type(value) is memoryview:
            return memoryview, (pickle.PickleBuffer(value),)
        if isinstance(value, CourserError):
            # Not by its constructor, whose arguments may have names.
            return _remade_error, (type(value), value.args, value.__dict__)
        return NotImplemented


def _remade_error(kind: type[CourserError], arguments: tuple[object, ...], facts: dict[str, object]) -> CourserError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(facts)
    return error
