"""The batch: bytes that are the same on the wire and on disk. Pure functions over buffers."""
