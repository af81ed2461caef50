"""A log of objects in an object store: one server at a time writes it, others follow. No event loop."""
