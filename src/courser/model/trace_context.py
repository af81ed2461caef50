"""The trace context of the W3C, as requests and messages carry it: which trace they belong to, and who caused them."""

import re
from dataclasses import dataclass

PARENT, STATE = "traceparent", "tracestate"
"""Names of the headers, of requests as of messages."""
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")
_STATE_LENGTH_MAX = 512
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A valid trace context."""

    parent: str
    state: str
    is_sampled: bool
    """Whether the sender records the trace."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that carry it."""
        return {PARENT: self.parent, STATE: self.state} if self.state else {PARENT: self.parent}


def trace_context_of(parent: str, state: str) -> TraceContext | None:
    """The context in these headers; None if there is no valid one. A state that is too long is left out."""
    found = _PARENT.fullmatch(parent)
    if found is None:
        return None
    is_state = len(state) <= _STATE_LENGTH_MAX and state.isascii() and state.isprintable()
    return TraceContext(parent, state if is_state else "", bool(int(found[1], 16) & _SAMPLED))
