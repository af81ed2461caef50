"""Work that waits for the disk, split so that storage needs no threads.

A job is planned on the owner's thread, run anywhere, and completed on the owner's thread again. ``run`` touches files
and what was captured when it was planned; only ``complete`` and ``fail`` touch the partition.
"""

from collections.abc import Callable
from dataclasses import dataclass

from courser.errors import StorageFailure


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of such work."""

    name: str
    run: Callable[[], None]
    """Raises ``StorageFailure``, never a bare ``OSError``."""
    complete: Callable[[], None]
    fail: Callable[[StorageFailure], None]


def perform(job: Job) -> bool:
    """Do a job on the spot and say whether it worked: for tools and tests, and for servers that stop."""
    try:
        job.run()
    except StorageFailure as failure:
        job.fail(failure)
        return False
    job.complete()
    return True
