"""The diagnosis archive, and the ZIP files that carry it."""

import io
import lzma
import struct
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from courser.broker.figures.diagnosis import Diagnosis
from courser.broker.figures.statistics import Machine
from courser.broker.figures.zip_archive import METHODS, write_zip
from courser.errors import CommandRejected, ErrorCode
from courser.records.compression import decompress
from courser.records.layout import Compression
from tests.fakes.clocks import ManualClock

ENTRIES = [("a.txt", b"hello " * 1000), ("empty.txt", b""), ("ü.txt", bytes(range(256)))]
STANDARD = {1: 0, 2: 8, 3: 12, 5: 14}
"""What the standard library can read: by Iggy's number, the number in the file."""
NAMES = {
    1: "filesystem_overview.txt",
    2: "process_list.txt",
    3: "resource_usage.txt",
    4: "test.txt",
    5: "server_logs.txt",
    6: "server_config.txt",
}


def raw_data(archive: bytes, info: zipfile.ZipInfo) -> bytes:
    """The compressed bytes of an entry, found by its local header."""
    name_length, extra_length = struct.unpack_from("<HH", archive, info.header_offset + 26)
    begin = info.header_offset + 30 + name_length + extra_length
    return archive[begin : begin + info.compress_size]


# --- ZIP ---


@pytest.mark.parametrize(("number", "method"), STANDARD.items())
def test_the_standard_library_reads_what_it_knows(number: int, method: int) -> None:
    with zipfile.ZipFile(io.BytesIO(write_zip(ENTRIES, METHODS[number]))) as archive:
        assert archive.testzip() is None
        assert [(info.filename, archive.read(info)) for info in archive.infolist()] == ENTRIES
        assert {info.compress_type for info in archive.infolist()} == {method}


def test_xz_entries_are_xz_streams() -> None:
    data = write_zip(ENTRIES, METHODS[6])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
    assert [(info.compress_type, info.filename) for info in infos] == [(95, name) for name, _ in ENTRIES]
    assert [lzma.decompress(raw_data(data, info)) for info in infos] == [contents for _, contents in ENTRIES]


def test_zstd_is_used_if_it_is_installed() -> None:
    data = write_zip(ENTRIES, METHODS[4])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
    assert {info.compress_type for info in infos} == {93}
    found = [
        decompress(Compression.ZSTD, raw_data(data, info), len(contents))
        for info, (_, contents) in zip(infos, ENTRIES, strict=True)
    ]
    assert found == [contents for _, contents in ENTRIES]


def test_zstd_frames_hold_plain_blocks_if_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    entries = [*ENTRIES, ("large.txt", bytes(range(256)) * 1025), ("exact.txt", bytes(128 * 1024))]
    data = write_zip(entries, METHODS[4])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
    assert {info.compress_type for info in infos} == {93}
    assert [read_plain_zstd(raw_data(data, info)) for info in infos] == [contents for _, contents in entries]


def read_plain_zstd(frame: bytes) -> bytes:
    """The contents of a frame whose blocks are not compressed, as RFC 8878 lays it out."""
    magic, descriptor, size = struct.unpack_from("<IBQ", frame)
    assert (magic, descriptor) == (0xFD2FB528, 0xE0)
    contents, position, is_last = b"", 13, False
    while not is_last:
        header = int.from_bytes(frame[position : position + 3], "little")
        is_last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
        assert kind == 0
        assert length <= 128 * 1024
        contents += frame[position + 3 : position + 3 + length]
        position += 3 + length
    assert position == len(frame)
    assert len(contents) == size
    return contents


def test_an_archive_of_nothing_has_22_bytes() -> None:
    assert len(write_zip([], METHODS[1])) == 22


# --- the archive ---


@pytest.fixture
def diagnosis(tmp_path: Path) -> Iterator[Diagnosis]:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "journal.wal").write_bytes(bytes(321))
    with ThreadPoolExecutor(1) as pool:
        diagnosis = Diagnosis(Machine(ManualClock(), tmp_path), tmp_path, pool)
        diagnosis.read_logs = lambda: b"all is well\n"
        diagnosis.read_configuration = lambda: b"[tcp]\nenabled = true\n"
        yield diagnosis


async def contents(diagnosis: Diagnosis, *kinds: int) -> dict[str, bytes]:
    data = await diagnosis.make_archive(2, kinds)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


async def test_entries_come_in_the_order_asked(diagnosis: Diagnosis) -> None:
    assert list(await contents(diagnosis, 6, 4, 1)) == [NAMES[6], NAMES[4], NAMES[1]]
    assert list(await contents(diagnosis, 4, 4)) == [NAMES[4]]
    assert await contents(diagnosis) == {}


async def test_all_is_all_but_the_test(diagnosis: Diagnosis) -> None:
    assert list(await contents(diagnosis, 100)) == [NAMES[kind] for kind in (1, 2, 3, 5, 6)]


@pytest.mark.parametrize("kinds", [(0,), (7,), (99,), (255,), (100, 1), (1, 100), (100, 100)])
async def test_unknown_kinds_and_all_beside_others_are_refused(diagnosis: Diagnosis, kinds: tuple[int, ...]) -> None:
    with pytest.raises(CommandRejected) as refused:
        await diagnosis.make_archive(1, kinds)
    assert refused.value.code is ErrorCode.INVALID_COMMAND


@pytest.mark.parametrize("compression", [0, 7, 255])
async def test_unknown_compressions_are_refused(diagnosis: Diagnosis, compression: int) -> None:
    with pytest.raises(CommandRejected) as refused:
        await diagnosis.make_archive(compression, (4,))
    assert refused.value.code is ErrorCode.INVALID_COMMAND


async def test_the_texts_say_what_they_promise(diagnosis: Diagnosis) -> None:
    found = await contents(diagnosis, 1, 2, 3, 4, 5, 6)
    assert b"321 metadata/journal.wal\n" in found[NAMES[1]]
    assert b"total_disk_space" in found[NAMES[1]]
    assert len(found[NAMES[2]].splitlines()) > 1
    assert b"memory_usage" in found[NAMES[3]]
    assert found[NAMES[4]] == b"test\n"
    assert found[NAMES[5]] == b"all is well\n"
    assert found[NAMES[6]] == b"[tcp]\nenabled = true\n"


async def test_arguments_of_processes_are_not_listed(tmp_path: Path) -> None:
    process = tmp_path / "proc" / "17"
    process.mkdir(parents=True)
    rest = " ".join(["S", *["0"] * 20, "3", "0"])
    (process / "stat").write_text(f"17 (odd (name)) {rest}\n")
    (process / "cmdline").write_text("server\0--password\0secret\0")
    with ThreadPoolExecutor(1) as pool:
        machine = Machine(ManualClock(), tmp_path)
        found = await contents(Diagnosis(machine, tmp_path, pool, proc=tmp_path / "proc"), 2)
    lines = found[NAMES[2]].decode().splitlines()
    assert lines[0] == "pid state memory name"
    assert [line.split(maxsplit=3)[3] for line in lines[1:]] == ["odd (name)"]
    assert b"secret" not in found[NAMES[2]]
