"""``courser serve`` with a planted defect. Arguments: the defect or "none", the program, then as for courser."""

import sys
import threading
import time
from collections.abc import Callable

from courser.cli.main import main
from courser.storage.local_files import LocalFile

LEAK_SIZE = 1024 * 1024
"""Bytes that are lost each second."""


def leak() -> None:
    """Lose memory, little by little."""
    lost: list[bytearray] = []
    never = threading.Event()

    def lose() -> None:
        while True:
            # Zeros would take no memory.
            lost.append(bytearray(b"x") * LEAK_SIZE)
            never.wait(1.0)

    threading.Thread(target=lose, daemon=True).start()


def slow_down() -> None:
    """Let a write take longer, the longer the server runs."""
    write_at, begin = LocalFile.write_at, time.monotonic()
    count = 0
    never = threading.Event()

    def write(self: LocalFile, *arguments: object) -> int:
        nonlocal count
        count += 1
        if count % 200 == 0:
            never.wait((time.monotonic() - begin) / 1_000)
        return write_at(self, *arguments)  # type: ignore[arg-type]

    LocalFile.write_at = write  # type: ignore[method-assign, assignment]


PLANTS: dict[str, Callable[[], None]] = {"leak": leak, "slow-down": slow_down, "none": lambda: None}


if __name__ == "__main__":
    PLANTS[sys.argv[1]]()
    sys.argv = sys.argv[2:]
    main()
