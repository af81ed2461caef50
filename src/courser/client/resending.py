"""Search the server for a batch whose reply was lost, before it is sent again.

Every message has a random id of 128 bits. A batch is stored as a whole or not at all, so the id of its first message
identifies it. A batch that is not found is sent again. One possible duplicate remains: a server that has not noticed
the broken connection may process a batch from its receive buffer after the client has searched.
"""

import numpy as np

from courser.api import commands as c
from courser.api.replies import Polled, Sent
from courser.client.batch_view import batches_of
from courser.client.link import Link
from courser.errors import NotAllowed, NotFound, OffsetsUnavailable
from courser.model.consumers import ConsumerKind
from courser.model.identifiers import Consumer, Identifier
from courser.model.messaging import PollingKind
from courser.records import layout
from courser.records.batch import Batch

_READ_SIZE_MAX = 4 * 1024 * 1024
_LOOK_SIZE_MAX = 256 * 1024 * 1024
"""Bytes to search before the batch is sent again without certainty."""
_NOBODY = Consumer(ConsumerKind.CONSUMER, 0)
_ID = slice(layout.FRAME_ID_POSITION, layout.FRAME_ID_POSITION + 16)


async def find_batch(
    link: Link, place: tuple[Identifier, Identifier, int], batch: Batch, first_offset: int
) -> Sent | None:
    """Where a batch was stored, at ``first_offset`` or above; None if it is not found, or the user may not poll."""
    stream, topic, partition_id = place
    # Wait for requests in progress, and for a sync: at the level `synced`, unsynced messages cannot be read.
    await link.request(c.FlushMessages(stream, topic, partition_id, fsync=True))
    first_id = np.frombuffer(batch.body[_ID], "<u8")
    offset, looked_at = first_offset, 0
    while looked_at < _LOOK_SIZE_MAX:
        poll = c.PollMessages(_NOBODY, stream, topic, partition_id, PollingKind.OFFSET, offset, 2**32 - 1, False)
        try:
            polled = await link.request(c.WaitForMessages(poll, 0, _READ_SIZE_MAX))
        except OffsetsUnavailable as gap:
            offset = gap.end_offset
            continue
        except (NotAllowed, NotFound):
            return None
        assert isinstance(polled, Polled)
        if not polled.message_count:
            return None
        for view in batches_of(polled):
            found = np.flatnonzero((view.ids().view("<u8").reshape(-1, 2) == first_id).all(axis=1))
            if len(found):
                # The reply to a send contains the ids of stream and topic, which are not needed here.
                return Sent(0, 0, partition_id, view.first_offset + int(found[0]))
            offset = view.next_offset
        looked_at += polled.size
    return None
