"""Shared code of the commands of ``courser inspect``: open a file, show its rows, report its head."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import click

from courser.cli.cells import Column, harmless
from courser.cli.failures import Failure, unreadable
from courser.cli.output import Report, emit
from courser.cli.server_options import examples
from courser.records.encryption import KEY_VARIABLE, OLD_KEYS_VARIABLE, KeyRing, keys_from
from courser.storage.files import FileSystem
from courser.storage.local_files import LocalFileSystem

_Inspection = TypeVar("_Inspection")
file_argument = click.argument("path", metavar="FILE", type=click.Path(path_type=Path, readable=False))
_EXITS = "Exit codes: 0 printed (damage is shown among the rows), 1 the file cannot be read, 2 wrong usage."

epilog = partial(examples, exits=_EXITS)


class SmallInspection(Protocol):
    """A small file that is shown as rows."""

    @property
    def head(self) -> object:
        """Facts about the whole file."""

    def rows(self) -> Iterator[object]:
        """The contents of the file."""


def environment_keys() -> KeyRing:
    """The keys of encrypted messages, from the variables that the server reads. Raises ``Failure``."""
    try:
        return keys_from(os.environ)
    except ValueError as error:
        raise Failure(f"{KEY_VARIABLE} or {OLD_KEYS_VARIABLE} is wrong: {error}", "correct it, or unset it") from None


def open_file(path: Path, inspect: Callable[[FileSystem, Path], _Inspection]) -> _Inspection:
    """Open a file for inspection. A symbolic link is followed."""
    try:
        return inspect(LocalFileSystem(), path.resolve(strict=True) if path.is_symlink() else path)
    except (OSError, ValueError) as error:
        raise unreadable(harmless(str(path)), error if isinstance(error, OSError) else OSError(str(error))) from error


def emit_report(path: Path, report: Report, output: str) -> None:
    """Write a report while its rows are read from the file."""
    try:
        emit(report, output)
    except OSError as error:
        raise unreadable(harmless(str(path)), error) from error


def emit_small(
    path: Path,
    inspection: SmallInspection,
    columns: tuple[Column, ...],
    cells: Callable[[object], tuple[str, ...]],
    is_alarming: Callable[[object], bool],
    output: str,
) -> None:
    """Write all rows of a small file, and the number of bad rows."""
    counts = {"row_count": 0, "bad_count": 0}

    def rows() -> Iterator[object]:
        for row in inspection.rows():
            counts["row_count"] += 1
            counts["bad_count"] += is_alarming(row)
            yield row

    emit_report(path, Report(columns, cells, rows(), is_alarming, inspection.head, lambda: counts), output)
