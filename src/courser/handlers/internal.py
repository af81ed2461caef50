"""What subscriptions and searches need of a topic, in the process that owns it."""

from courser.api import internal_commands as i
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.messages.searching import filter_of


async def find_start_offsets(broker: Broker, session: Session, command: i.FindStartOffsets) -> i.StartOffsets:
    """Where a subscription starts."""
    return await broker.polls.find_start_offsets(broker.finder.address(session, command), command)


async def find_ranges_to_scan(broker: Broker, session: Session, command: i.FindRangesToScan) -> i.RangesToScan:
    """What a scan looks at."""
    return await broker.scan_pieces.find_ranges(broker.finder.address(session, command), command)


async def scan_piece(broker: Broker, session: Session, command: i.ScanPiece) -> i.ScannedPiece:
    """Which messages of a piece match."""
    address = broker.finder.address(session, command)
    return await broker.scan_pieces.look(address, command, filter_of(command.conditions))
