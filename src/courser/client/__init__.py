"""Courser's own client: async first, with a sync twin. ``courser.connect`` is the way in; docs/client.md the guide."""
