"""Courser's own client: async, with a sync twin. ``courser.connect`` is the entry point, docs/client.md the guide."""
