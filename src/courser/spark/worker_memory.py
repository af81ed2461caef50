"""The memory of Spark's Python workers."""

import gc
from functools import cache

from pyspark import TaskContext


@cache
def spare_collections() -> None:
    """Let the modules that are loaded out of the full collection that a worker makes behind every task.

    With pandas and pyarrow in memory that costs 70 ms each time, as much as reading 50 MB, or half of a micro-batch.
    Done at the end of the first task of a process, when all modules are there, and not in a user's own process.
    """
    if TaskContext.get() is not None:
        gc.freeze()
