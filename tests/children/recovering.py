"""``courser``, with a recovery that takes until a file exists: ``recovering.py COURSER ARGUMENT...``.

The file is ``recovered`` in the working directory.
"""

import asyncio
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

from courser.broker.broker import Broker

open_broker = Broker.open


def wait_for_file() -> None:
    pause = threading.Event()
    while not Path("recovered").exists():
        pause.wait(0.01)


async def open_slowly(*arguments: Any, **options: Any) -> Broker:
    await asyncio.to_thread(wait_for_file)
    return await open_broker(*arguments, **options)


if __name__ == "__main__":
    Broker.open = open_slowly  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
