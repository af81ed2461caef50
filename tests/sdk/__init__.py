"""The official Python SDK, each release in an environment of its own, against a running server."""
