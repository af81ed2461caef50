"""The archive: sealed segments and metadata in an object store, and the way back (docs/archive.md)."""
