"""What the processes of a server do together for the archive: phases that the first one asks of the others."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from courser.processes.links import Links
from courser.processes.peer import Peer

if TYPE_CHECKING:
    # Most servers have no archive: they do not import it.
    from courser.broker.archive.archive_share import ArchiveShare
    from courser.broker.archive.archiving import Phase

ARCHIVE = "archive"
"""The name of calls that have a process carry out a phase."""
_TELL = "archive_tell"

Answer = TypeVar("Answer")


class ArchivePeers:
    """All other processes, for the archiver."""

    def __init__(self, links: Links, take_over: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        self._links = links
        self.take_over = take_over

    async def wait_for_all(self) -> None:
        """Wait for those that are being restarted. Raises ``CommandRejected`` (20010) if that takes too long."""
        for number in sorted(self._links.numbers):
            await self._links.wait_for(number)

    def ask_archives(self, phase: "Phase[Answer]") -> Sequence[Awaitable[Answer]]:
        """Have them carry out a phase. Raises ``CommandRejected`` (20010) if one of them is being restarted."""
        peers = [self._links.at(number) for number in sorted(self._links.numbers)]
        return [peer.call(ARCHIVE, phase) for peer in peers]

    def tell_archives(self, tell: "Callable[[ArchiveShare], None]") -> None:
        """Tell something to those that are there. Messages are in order."""
        for peer in self._links:
            peer.note(_TELL, tell)


def archive_services(share: "ArchiveShare") -> dict[str, Callable[..., Any]]:
    """What a further process does for the archiver: the services of a ``Peer``."""

    async def carry_out(_: Peer, phase: "Phase[Any]") -> Any:
        return await phase(share)

    def listen(_: Peer, tell: "Callable[[ArchiveShare], None]") -> None:
        tell(share)

    return {ARCHIVE: carry_out, _TELL: listen}
