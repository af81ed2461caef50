"""Plays a section of a recording against a server, and says what differs."""

import re
import struct
from collections.abc import Iterable

import xxhash

from tests.replay.bookkeeping import Books
from tests.replay.captures import Exchange, Wire
from tests.replay.comparison import Difference, compare, translate
from tests.replay.connections import CLOSED, NO_ANSWER, VSR_HEADER_SIZE, Answer, Connection, parse_vsr
from tests.replay.consequences import carry_out
from tests.replay.fields import Record
from tests.replay.preparations import PREPARATIONS, USUALLY_FRESH, Preparation
from tests.replay.replies import parse_reply
from tests.replay.requests import Target, parse_request
from tests.replay.server import ReplayServer

_CLASSIC_HEADER_SIZE = 8
_SESSION_AT, _CHECKSUM_AT, _SIZE_AT = 184, 144, 48
# Header bytes that no client looks at: the cluster, the release, and the echoes with the server's own counters.
_UNREAD = ((32, 48), (56, 60), (128, 208))
_VERSIONS = (144, 152)
"""In an eviction: the versions that the server accepts."""
_SIZE = (48, 52)


class Player:
    """One section against one server."""

    def __init__(self, server: ReplayServer, wire: Wire) -> None:
        self._server = server
        self._wire = wire
        self._books = Books(server.clock.now)
        self._connections: dict[str, Connection] = {}
        self.findings: list[tuple[Exchange, Difference]] = []

    async def play(self, exchanges: Iterable[Exchange]) -> None:
        """Play all exchanges in their order; what differs is in ``findings``."""
        try:
            for exchange in exchanges:
                differences = await self._play(exchange)
                self.findings += [(exchange, difference) for difference in differences]
        finally:
            for connection in self._connections.values():
                await connection.close()

    async def _play(self, exchange: Exchange) -> list[Difference]:
        if exchange.command == "(close)":
            await self._connections.pop(exchange.connection).close()
            return []
        if exchange.command == "(wait)":
            self._wait(exchange)
            return []
        connection = await self._connection(exchange)
        preparation = PREPARATIONS.get((self._wire, exchange.title))
        if preparation is not None:
            await preparation(Preparation(self._server, exchange, connection, self._connections))
            connection = self._connections[exchange.connection]
        body = exchange.request[self._header_size :]
        record, target = parse_request(self._wire, exchange.command, body, self._books)
        self._note_message_ids(exchange, record, target)
        answer, fate = await self._exchange(exchange, connection, self._translated(exchange, connection, record))
        return self._judge(exchange, target, connection, answer, fate)

    def _wait(self, exchange: Exchange) -> None:
        """Let the clock do the waiting. Where a rebalance was waited for, there is nothing to wait for here."""
        seconds = re.search(r"([\d.]+) s", exchange.name)
        if seconds is not None:
            self._server.clock.advance(int(float(seconds.group(1)) * 1_000_000))

    @property
    def _header_size(self) -> int:
        return _CLASSIC_HEADER_SIZE if self._wire is Wire.CLASSIC else VSR_HEADER_SIZE

    async def _connection(self, exchange: Exchange) -> Connection:
        is_fresh = (self._wire, exchange.section) in USUALLY_FRESH
        if is_fresh and exchange.connection in self._connections:
            await self._connections.pop(exchange.connection).close()
        connection = self._connections.get(exchange.connection)
        if connection is None:
            connection = await Connection.open(self._wire, self._server.port)
            self._connections[exchange.connection] = connection
            if is_fresh:
                await USUALLY_FRESH[self._wire, exchange.section](
                    Preparation(self._server, exchange, connection, self._connections)
                )
        return connection

    # --- requests ---

    def _translated(self, exchange: Exchange, connection: Connection, record: Record) -> bytes:
        """The frame with our numbers in it, and with whatever depends on them."""
        recorded = exchange.request
        body = translate(record, self._books)
        if exchange.command in {"LoginWithPersonalAccessToken", "Register"}:
            for theirs, ours in self._books.tokens.items():
                body = body.replace(theirs, ours)
        header = bytearray(recorded[: self._header_size])
        grown = len(body) - (len(recorded) - self._header_size)
        if self._wire is Wire.CLASSIC:
            struct.pack_into("<I", header, 0, struct.unpack_from("<I", header)[0] + grown)
            return bytes(header) + body
        struct.pack_into("<I", header, _SIZE_AT, struct.unpack_from("<I", header, _SIZE_AT)[0] + grown)
        checksum = struct.unpack_from("<Q", header, _CHECKSUM_AT)[0]
        if checksum == xxhash.xxh3_64_intdigest(recorded[self._header_size :]):
            struct.pack_into("<Q", header, _CHECKSUM_AT, xxhash.xxh3_64_intdigest(body))
        if struct.unpack_from("<Q", header, _SESSION_AT)[0] == connection.recorded_session:
            struct.pack_into("<Q", header, _SESSION_AT, connection.our_session)
        return bytes(header) + body

    def _note_message_ids(self, exchange: Exchange, record: Record, target: Target) -> None:
        """Remember the ids that the client gave: these come back as they are."""
        if self._wire is Wire.VSR or exchange.command != "SendMessages":
            return
        messages = record.field("rest").data[16 * target.count :]
        while len(messages) >= 64:
            headers_size, payload_size = struct.unpack_from("<II", messages, 48)
            if any(messages[8:24]):
                self._books.sent_message_ids.add(messages[8:24])
            messages = messages[64 + headers_size + payload_size :]

    async def _exchange(self, exchange: Exchange, connection: Connection, request: bytes) -> tuple[Answer, str]:
        """Send a request. Return the answer, and what then became of the connection."""
        if "waits for the missing bytes" in exchange.note:
            return await connection.wait_for_nothing(request), "usable"
        if exchange.channel == "none":
            answer, is_usable = await connection.ask_with_ping(request)
            return answer, "usable" if is_usable else "closed"
        answer = await connection.ask(request)
        if answer is CLOSED:
            return answer, "closed"
        return answer, "usable" if answer.channel == "ok" else await connection.fate()

    # --- answers ---

    def _judge(
        self, exchange: Exchange, target: Target, connection: Connection, answer: Answer, fate: str
    ) -> list[Difference]:
        recorded = self._recorded_answer(exchange)
        differences = []
        if recorded.outcome != answer.outcome:
            differences.append(Difference("outcome", recorded.outcome, answer.outcome))
        # An outcome without a reply says what became of the connection, too.
        if exchange.aftermath != fate and not {recorded.channel, answer.channel} & {"none", "closed"}:
            differences.append(Difference("connection", exchange.aftermath, fate))
        recorded_reply = Record()
        if recorded.channel == "ok":
            recorded_reply = parse_reply(
                self._wire, exchange.command, target, recorded.body, is_cut=exchange.reply.is_cut
            )
        if recorded.outcome == answer.outcome:
            differences += self._compare_headers(recorded, answer)
            if answer.channel == "ok":
                differences += self._compare_bodies(exchange, target, recorded_reply, recorded, answer)
        is_ours = answer.channel == "ok"
        base_offset = None
        if is_ours and self._wire is Wire.VSR and exchange.command == "SendMessages":
            base_offset = struct.unpack_from("<Q", answer.body, 16)[0]
        carry_out(self._books, exchange, target, recorded_reply, is_ours=is_ours, base_offset=base_offset)
        if exchange.command == "Register" and recorded.channel == answer.channel == "ok":
            connection.recorded_session = recorded_reply.field("session").value
            connection.our_session = struct.unpack_from("<Q", answer.body, 4)[0]
        return differences

    def _recorded_answer(self, exchange: Exchange) -> Answer:
        if exchange.channel == "none":
            return CLOSED if exchange.aftermath == "closed" else NO_ANSWER
        if self._wire is Wire.CLASSIC:
            return Answer(exchange.channel, exchange.status, exchange.reply.data)
        answer = parse_vsr(exchange.reply.data)
        assert (answer.channel, answer.status) == (exchange.channel, exchange.status), (
            f"{exchange.title} was read wrongly"
        )
        return answer

    def _compare_headers(self, recorded: Answer, ours: Answer) -> list[Difference]:
        if not recorded.header:
            return []
        differences = []
        if recorded.channel == "evict" and recorded.header[slice(*_VERSIONS)] != ours.header[slice(*_VERSIONS)]:
            differences.append(
                Difference("versions", recorded.header[slice(*_VERSIONS)].hex(), ours.header[slice(*_VERSIONS)].hex())
            )
        if recorded.header[208] != ours.header[208]:
            differences.append(Difference("operation", str(recorded.header[208]), str(ours.header[208])))
        masked = [_masked(recorded.header), _masked(ours.header)]
        if masked[0] != masked[1]:
            differences.append(Difference("header", masked[0].hex(), masked[1].hex()))
        return differences

    def _compare_bodies(
        self, exchange: Exchange, target: Target, recorded_reply: Record, recorded: Answer, answer: Answer
    ) -> list[Difference]:
        ours = parse_reply(self._wire, exchange.command, target, answer.body)
        if exchange.reply.is_cut:
            ours = _beginning(recorded_reply, ours)
        if bool(recorded.body) != bool(answer.body):
            sizes = (f"{len(part.body)} bytes" for part in (recorded, answer))
            return [Difference("reply", *sizes)]
        return compare(self._wire, recorded_reply, ours, self._books, exchange.note)


def _masked(header: bytes) -> bytes:
    """A header without what nobody reads, and without the size, which follows from the body."""
    masked = bytearray(header)
    for start, end in (*_UNREAD, _SIZE, (208, 209)):
        masked[start:end] = bytes(end - start)
    return bytes(masked)


def _beginning(recorded: Record, ours: Record) -> Record:
    """As much of our reply as there is of a recorded one that was cut."""
    beginning = Record()
    for name, part in recorded.items():
        own = ours.get(name)
        if isinstance(part, list) and isinstance(own, list):
            beginning[name] = own[: len(part)]
        elif own is not None:
            beginning[name] = own
    if "surplus" in ours:
        beginning["surplus"] = ours["surplus"]
    return beginning
