"""Batches, which have the same bytes on the wire and on disk. Pure functions over buffers."""
