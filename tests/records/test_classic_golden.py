"""Classic messages as they were seen on real wires: what SDKs sent, and what the original servers made of it."""

import pytest

from courser.records.batch import Batch, encode_batch
from courser.records.classic import Dialect, header_size_of
from courser.records.frames import layout_of
from tests.records.classic_messages import LONG, ORIGIN, TYPED, Message, decode_one, encode, section_of, stored_frame


def bytes_of(notation: str) -> bytes:
    """Hex in which ``{N}`` stands for N zero bytes."""
    pieces = notation.replace("{", " {").replace("}", " ").split()
    return b"".join(bytes(int(piece[1:])) if piece[0] == "{" else bytes.fromhex(piece) for piece in pieces)


class TestGoldenBytes:
    # Sent to a real server 0.8 by a test driver: three messages, two with id 7, one with id 2^128-1 and a user header.
    SENT = bytes_of(
        "{4}42{15}84{15}d2{11}"
        "{8}07{31}00401e18240a06000000000002{11}6231"
        "{8}07{31}00401e18240a06000000000002{11}6232"
        "{8}ffffffffffffffffffffffffffffffff{16}00401e18240a06000c{3}02{11}623302010000006b020100000076"
    )
    # What that server returned for them, from offset 1 on.
    POLLED = (
        bytes_of("3f88eee2d934bac107{15}01{7}af89a5c14c60060000401e18240a06000000000002{11}6231"),
        bytes_of("0fa5c04620b7d60007{15}02{7}af89a5c14c60060000401e18240a06000000000002{11}6232"),
        bytes_of(
            "9c7f79bf96435976ffffffffffffffffffffffffffffffff03{7}af89a5c14c60060000401e18240a06000c{3}02{11}"
            "623302010000006b020100000076"
        ),
    )
    TIMESTAMP = 0x0006604CC1A589AF

    def test_a_poll_returns_what_the_original_server_returned(self) -> None:
        batch = decode_one(self.SENT, 3)
        assert encode([batch], LONG, base_offset=1, base_timestamp=self.TIMESTAMP) == b"".join(self.POLLED)

    def test_so_does_a_poll_from_the_middle_of_the_batch(self) -> None:
        batch = decode_one(self.SENT, 3)
        start = int(batch.frames.starts[1])
        rest = batch.body[start:]
        trimmed = Batch(batch.origin_timestamp, 2, rest, layout_of(rest, 2), batch.checksums[8:])
        assert encode([trimmed], LONG, base_offset=1, base_timestamp=self.TIMESTAMP) == b"".join(self.POLLED[1:])

    @pytest.mark.parametrize(
        ("messages", "batch"),
        [
            # Made by the SDK itself. The other two came from a test driver; a real server 0.9, which checks both kinds
            # of checksum, accepted them.
            pytest.param(
                [
                    Message(b"hello", bytes.fromhex("f63ff6bc223345ecbb243c3b434b5206"), 0x0006604AEE7158A2),
                    Message(b"world", bytes.fromhex("274ff2ca8c4944d7997838fedcb3affd"), 0x0006604AEE7158A2 + 0x32),
                ],
                "{24}a25871ee4a6006006a01{6}3bb5b655bbf6853902{207}"
                "96bcae54faff483df63ff6bc223345ecbb243c3b434b5206{12}05{11}68656c6c6f"
                "aa7d3d3d8613aedd274ff2ca8c4944d7997838fedcb3affd01{3}32{7}05{11}776f726c64",
                id="SDK 0.9",
            ),
            pytest.param(
                [
                    Message(b"12345", b"\x00\x10".ljust(16, b"\0")),
                    Message(b"123", b"\x01\x10".ljust(16, b"\0")),
                    Message(b"1", b"\x02\x10".ljust(16, b"\0")),
                ],
                "{24}00401e18240a06009901{6}42800f98b433af7803{207}"
                "a5256dc9160cf7770010{26}05{11}3132333435"
                "9656454eade7074e0110{14}01{11}03{11}313233"
                "c09585fc2cee23c80210{14}02{11}01{11}31",
                id="mixed sizes",
            ),
            pytest.param(
                [
                    Message(
                        b"hi",
                        b"\x00\x10".ljust(16, b"\0"),
                        user_headers=TYPED + bytes.fromhex("02010000006e0b0400000007000000"),
                    )
                ],
                "{24}00401e18240a06004d01{6}6e17febeebadada801{207}"
                "41732712b1f6120c0010{22}1b{3}02{11}68690201{3}6b0201{3}760201{3}6e0b04{3}07{3}",
                id="user headers",
            ),
        ],
    )
    def test_the_batch_is_the_one_of_the_same_messages_on_the_0_9_wire(
        self, messages: list[Message], batch: str
    ) -> None:
        made = decode_one(section_of(messages, LONG), len(messages))
        assert encode_batch(made) == bytes_of(batch)

    def test_creation_times_become_distances_as_on_the_0_9_wire(self) -> None:
        messages = [
            Message(b"m0%d" % number, bytes([number + 1]).ljust(16, b"\0"), ORIGIN + 10 * number) for number in range(3)
        ]
        made = decode_one(section_of(messages, LONG), 3)
        assert encode_batch(made, base_timestamp=0x0006604D5F48D6DD) == bytes_of(
            "{16}ddd6485f4d60060000401e18240a06009901{6}12e705d0ed91895503{207}"
            "1a78f5c88baa16aa01{27}03{11}6d3030"
            "be9d8336ebf74c4802{15}01{3}0a{7}03{11}6d3031"
            "e72eeaad27eea4ad03{15}02{3}14{7}03{11}6d3032"
        )

    # Recorded from the SDKs, but for the second message of 0.5, of which only the size was: its time is made up.
    @pytest.mark.parametrize(
        ("section", "header_size", "origins"),
        [
            pytest.param(
                "{4}45{15}8d{11}"
                "{40}7e9399e64a60060000000000 05{11}68656c6c6f"
                "{40}889399e64a60060000000000 08{11}77c3b6726c642d32",
                64,
                (0x0006604AE699937E, 0x0006604AE6999388),
                id="SDK 0.8",
            ),
            pytest.param(
                "{4}3d{15}7d{11}"
                "{40}632076e74a60060000000000 05{3}68656c6c6f"
                "{40}702076e74a60060000000000 08{3}77c3b6726c642d32",
                56,
                (0x0006604AE7762063, 0x0006604AE7762070),
                id="SDK 0.5",
            ),
        ],
    )
    def test_what_the_sdks_send_is_understood(self, section: str, header_size: int, origins: tuple[int, int]) -> None:
        sent = bytes_of(section)
        dialect = LONG if header_size == 64 else Dialect.SDK_0_5
        assert header_size_of(memoryview(sent), 2) == header_size
        hello, world = (Message(b"hello", bytes(16), origins[0]), Message("wörld-2".encode(), bytes(16), origins[1]))
        batch = decode_one(sent, 2, dialect)
        assert batch.origin_timestamp == origins[0]
        assert bytes(batch.body) == stored_frame(hello, 0, origins[0], dialect) + stored_frame(
            world, 1, origins[0], dialect
        )
