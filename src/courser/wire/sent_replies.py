"""The reply to a send, made by a process that does not have the connection.

The codec of the connection gives what the reply repeats of its request (``Codec.sent_facts``); these bytes go with the
request to the process that carries it out.
"""

from struct import Struct

from courser.api.replies import Sent
from courser.wire.vsr_headers import sent_reply

_VSR = Struct("<16s16sQ")
"""client, checksum and number of the request"""
_CLASSIC_REPLY = bytes(8)
"""Status 0 without a payload."""

CLASSIC_FACTS = b""
pack_vsr_facts = _VSR.pack
_unpack_vsr_facts = _VSR.unpack


def reply_to_send(facts: bytes, sent: Sent) -> bytes:
    """The whole reply."""
    if not facts:
        return _CLASSIC_REPLY
    client, checksum, request = _unpack_vsr_facts(facts)
    return sent_reply(client, checksum, request, sent.stream_id, sent.topic_id, sent.partition_id, sent.base_offset)
