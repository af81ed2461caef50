"""Courser: a durable message streaming server."""

__version__ = "0.1.0"
