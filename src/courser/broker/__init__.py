"""Behaviour: what an event loop does with the storage. Awaits, but opens no socket."""
