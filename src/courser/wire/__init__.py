"""Bytes in flight: frames to commands, replies to frames. Sans-IO: no sockets, no event loop, tested by calling it."""
