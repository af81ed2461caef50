"""Batches whose answers were lost: looked for on the server before they are sent again.

Every message has an id of 128 bits that its producer drew. A batch is stored whole or not at all, so the id of its
first message tells. What is not found is sent again. One way to a duplicate is left: a server that is cut off from the
client without knowing it may take a batch that it has received out of its buffer after the client has looked.
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
"""Bytes that are looked through before it is sent again unseen."""
_NOBODY = Consumer(ConsumerKind.CONSUMER, 0)
_ID = slice(layout.FRAME_ID_POSITION, layout.FRAME_ID_POSITION + 16)


async def find_batch(
    link: Link, place: tuple[Identifier, Identifier, int], batch: Batch, first_offset: int
) -> Sent | None:
    """Where a batch was stored, at ``first_offset`` or above; None if it is not there, or may not be looked for."""
    stream, topic, partition_id = place
    # Behind what the server is still busy with; and what is not synced is not shown at the level `synced`.
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
                # The reply to a send names streams and topics by number, which nobody here asks for.
                return Sent(0, 0, partition_id, view.first_offset + int(found[0]))
            offset = view.next_offset
        looked_at += polled.size
    return None
