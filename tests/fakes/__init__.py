"""Test doubles: a file system with power cuts and faults, an object store, a clock that a test sets."""
