"""Exactly-once writes: staged parts, the publish that decides them, and its redo after a crash."""
