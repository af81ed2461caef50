"""What can go wrong with a replicated log, apart from a store that does not answer."""

from courser.archive.errors import ArchiveFailure


class Deposed(ArchiveFailure):
    """Another process has a slot that this one wanted. It acknowledges nothing more, and ends."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__("write", key, reason)


class LogMovedOn(ArchiveFailure):
    """What follows a position is not in the log any more, or is not true: a later epoch has begun without it.

    Who is there loads a root, and follows from its position.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__("follow", key, reason)


class ObjectsMissing(ArchiveFailure):
    """The store had objects of the log, and has them no more. Nobody may claim, or what they held is lost for good."""

    def __init__(self, key: str, beyond: str) -> None:
        reason = (
            f"objects are missing: there is {beyond}, which was written after it; was the store set back? "
            "bring the objects back, or restore what the archive has"
        )
        super().__init__("follow", key, reason)
