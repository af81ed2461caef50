"""What a connection is doing, and what it may do next."""

from enum import Enum


class State(Enum):
    """What a connection is doing. Details of receiving, such as the size of the frame, are kept separately."""

    RECEIVING = "receiving"
    """The next request has not arrived, or not completely."""
    YIELDING = "yielding"
    """Other connections come first. It continues in its next turn with what is in its buffer."""
    ANSWERING = "answering"
    """A request is in progress."""
    SENDING = "sending"
    """The kernel has not accepted all of a reply."""
    DISCARDING = "discarding"
    """A frame was refused. The rest of it is dropped, so that the client finishes sending it and reads the reply."""
    FINISHING = "finishing"
    """A request is in progress, and the connection will be closed after its reply."""
    CLOSED = "closed"
    """No more requests are handled. A reply may still be in flight."""


TRANSITIONS: dict[State, frozenset[State]] = {
    # A whole request has arrived; the connection has used its share of the turn; the request is too large; the
    # connection is closed or lost.
    State.RECEIVING: frozenset({State.ANSWERING, State.YIELDING, State.DISCARDING, State.CLOSED}),
    # Its turn has come; it is closed or lost.
    State.YIELDING: frozenset({State.RECEIVING, State.CLOSED}),
    # The kernel has accepted the reply, or only part of it; the connection is to be closed or is lost; the reply was
    # the last one.
    State.ANSWERING: frozenset({State.RECEIVING, State.SENDING, State.FINISHING, State.CLOSED}),
    # The kernel has accepted the rest; the connection is closed or lost.
    State.SENDING: frozenset({State.RECEIVING, State.CLOSED}),
    # All of the frame has arrived; the connection is closed or lost.
    State.DISCARDING: frozenset({State.CLOSED}),
    # The reply is sent, or the client is gone.
    State.FINISHING: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}
"""All transitions between states. Tests check them; the loop does not, because that would slow down every request."""
