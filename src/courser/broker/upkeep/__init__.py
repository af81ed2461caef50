"""Maintenance in the background: retention, compaction of keys, scrubbing."""
