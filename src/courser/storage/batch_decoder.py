"""Decoded batches for the reads of one partition.

A read of a few messages decodes their whole batch, and the next read most often asks for its next messages. So the
batch that was last read in part is kept.
"""

from courser.records.encryption import KeyRing
from courser.records.stored_body import decode
from courser.records.stored_header import StoredHeader
from courser.storage.engine_limits import EngineLimits


class BatchDecoder:
    """Can be called from several threads, which share only the batch that is kept."""

    __slots__ = ("_kept", "_keys", "_limits")

    def __init__(self, keys: KeyRing, limits: EngineLimits) -> None:
        self._keys = keys
        self._limits = limits
        self._kept: tuple[StoredHeader, memoryview] | None = None

    def frames(self, header: StoredHeader, stored: memoryview, *, wait: bool) -> memoryview:
        """The frames of a stored batch that passed its checks; see ``stored_body.decode``.

        Raises:
            BlockingIOError: without ``wait``, if that takes too long for the thread of the event loop.
        """
        kept = self._kept
        # The header has the hash of the body: an equal one belongs to an equal batch.
        if kept is not None and kept[0] == header:
            return kept[1]
        if not wait and header.batch_length > self._limits.inline_coding_size:
            raise BlockingIOError
        return decode(header, stored, self._keys)

    def keep(self, header: StoredHeader, frames: memoryview) -> None:
        """Keep a batch whose rest will be requested next."""
        if len(frames) <= self._limits.decoded_size_max:
            self._kept = header, frames

    def release(self, header: StoredHeader) -> None:
        """Forget a batch that was read to its end."""
        kept = self._kept
        if kept is not None and kept[0] == header:
            self._kept = None
