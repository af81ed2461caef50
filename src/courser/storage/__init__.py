"""Bytes at rest: segments, indexes, the ledger, stored offsets, recovery. Synchronous; no threads, no sockets.

Everything that touches the disk goes through the ``FileSystem`` that is handed in.
"""
