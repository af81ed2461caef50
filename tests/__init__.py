"""The tests. A package, so that long-running rounds can be started with ``python -m tests...``."""
