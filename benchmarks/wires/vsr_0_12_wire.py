"""The protocol of SDK 0.10, encoded by hand: what differs from that of SDK 0.9."""

import os

from benchmarks.samples import SampleBatch
from benchmarks.wires.requests import PollRequest, SendRequest, TopicName, text8, topic_of
from benchmarks.wires.vsr_wire import READ, REGISTER, U32, U64, VsrWire
from courser.client.targets import Target

_PROTOCOL = bytes.fromhex("02300000")
_SECRET_SIZE = 32
_ROUTE = 105
_INCARNATION_POSITION, _METADATA_POSITION = 200, 216


class Vsr12Wire(VsrWire):
    """A connection with protocol 0.12.2. Requests for a partition say which incarnation of it they are for."""

    def _log_in(self, target: Target) -> None:
        names = text8("bench") + text8("0.10.0") + os.urandom(_SECRET_SIZE)
        login = text8(target.username or "") + text8(target.password or "")
        reply = self._call(REGISTER, _PROTOCOL + names + login + bytes(4))
        self._session = U64.unpack_from(reply, 4)[0]

    def topic_figures(self, place: TopicName) -> tuple[int, int]:
        raise NotImplementedError("no benchmark asks for it")

    def make_send(self, place: TopicName, partition_id: int, sample: SampleBatch) -> SendRequest:
        request = super().make_send(place, partition_id, sample)
        self._place(request.frame, place, partition_id)
        return request

    def make_poll(self, place: TopicName, partition_id: int) -> PollRequest:
        request = super().make_poll(place, partition_id)
        self._place(request.frame, place, partition_id)
        return request

    def _place(self, frame: bytearray, place: TopicName, partition_id: int) -> None:
        """Say which partition is meant: the context is that of its route."""
        route = self._call(READ, topic_of(place) + U32.pack(partition_id), _ROUTE)
        frame[_INCARNATION_POSITION : _INCARNATION_POSITION + 8] = route[:8]
        frame[_METADATA_POSITION : _METADATA_POSITION + 8] = route[8:16]
