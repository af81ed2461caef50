"""Metadata: streams, topics, partitions, users, permissions, tokens and consumer groups, as one state machine.

Pure: no event loop, no threads. A change is checked, journaled and synced, then applied. Applying is deterministic,
so a snapshot and the journal entries after it always produce the same state.
"""
