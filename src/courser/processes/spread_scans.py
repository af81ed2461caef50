"""Scans of topics of all processes, for the first process, which has HTTP.

The owner of the topic carries a scan out. It is asked for one event at a time, when the client has taken the last.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from itertools import count

from courser.api.scans import ScanDone, ScanEvent, ScanRequest
from courser.broker.finding import find_stream, find_topic
from courser.broker.scanning import AnyScan, Scans
from courser.broker.sessions import Session
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected
from courser.processes.links import Links
from courser.processes.ownership import FIRST
from courser.processes.peer import Peer


class SpreadScans:
    """Makes scans. This process counts those of all."""

    def __init__(self, here: Scans, state: CatalogState, links: Links) -> None:
        self._here = here
        self._state = state
        self._links = links
        self._numbers = count()

    async def start(
        self, held: AsyncExitStack, session: Session, request: ScanRequest, check_login: Callable[[], None]
    ) -> AnyScan:
        """See ``Scans``."""
        owner = self._owner_of(request)
        if owner == FIRST:
            return await self._here.start(held, session, request, check_login)
        held.enter_context(self._here.counted(session.user_id))
        peer = await self._links.wait_for(owner)
        number = next(self._numbers)
        facts = session.address, session.request_id
        held.callback(peer.note, "scan_close", number)
        await peer.call("scan_open", number, facts, session.user_id, request)
        return ForwardedScan(number, peer, check_login)

    def _owner_of(self, request: ScanRequest) -> int:
        """The owner of a topic, who says whether the user may read it. Of one that does not exist: this process."""
        try:
            stream = find_stream(self._state, request.stream)
            return self._links.owner_of(stream.stream_id, find_topic(self._state, stream, request.topic).topic_id)
        except CommandRejected:
            return FIRST


class ForwardedScan:
    """A scan of another process."""

    def __init__(self, number: int, peer: Peer, check_login: Callable[[], None]) -> None:
        self._number = number
        self._peer = peer
        self._check_login = check_login

    async def events(self) -> AsyncGenerator[ScanEvent, None]:
        """See ``Scan``."""
        while True:
            self._check_login()
            event: ScanEvent = await self._peer.call("scan_next", self._number)
            yield event
            if isinstance(event, ScanDone):
                return
