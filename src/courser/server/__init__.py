"""The server as a whole: configuration, assembly, logging, life."""
