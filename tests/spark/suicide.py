"""A task that kills its own executor, once."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def die_once(batches: Iterator[Any], marker: str) -> Iterator[Any]:
    """Hand on rows; after a thousand of them kill the Java process that runs this task, if nobody did before."""
    count = 0
    for batch in batches:
        yield batch
        count += batch.num_rows
        if count >= 1000 and not Path(marker).exists():
            Path(marker).touch()
            # This is a child of Spark's Python daemon, and that is the executor's.
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            assert "java" in Path(f"/proc/{executor}/exe").readlink().name
            os.kill(executor, signal.SIGKILL)
