"""The wire protocols: frames to commands, replies to frames. Sans-IO: no sockets, no event loop."""
