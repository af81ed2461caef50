"""Who listens on a port: asked by ``courser dev`` and ``courser doctor``."""

import socket

_PING = (4).to_bytes(4, "little") + (1).to_bytes(4, "little")
_NOTHING = bytes(8)


def listens(host: str, port: int) -> bool:
    """Whether a program accepts connections at this address."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def answers_ping(host: str, port: int) -> bool:
    """Whether the program is a Courser server, or another one that understands the ping of Iggy 0.5 to 0.8."""
    try:
        with socket.create_connection((host, port), timeout=2) as connection:
            # Length and code of a request without a body; status and length of the reply.
            connection.sendall(_PING)
            return connection.recv(8, socket.MSG_WAITALL) == _NOTHING
    except OSError:
        return False
