"""Several processes that are one server: each owns some topics, and requests find their owner (docs/adr/0021)."""
