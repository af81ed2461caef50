"""How many connections a server may have, as one of its processes sees it."""


class ConnectionSlots:
    """The slots of the only process of a server. Others may share them (``processes/shared_slots``)."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max

    def take(self, count: int) -> bool:
        """Whether this process, which has so many connections, may have one more."""
        return count < self._count_max

    def note(self, count: int, stranger_count: int) -> None:
        """This process has so many connections now, and so many of them without a login."""
        del count, stranger_count

    def free_in_peers(self, stranger_count: int) -> bool:
        """Have another process close a stranger, if one has more strangers than this process, which has so many.

        Returns whether it was asked to.
        """
        del stranger_count
        return False
