"""What can go wrong with an archive. The numbers are those of ``courser.errors``."""

from courser import __version__
from courser.errors import CourserError, ErrorCode


class ArchiveFailure(CourserError):
    """The store of the archive refused an operation, or did not answer. What was asked for may have been done."""

    code = ErrorCode.ARCHIVE_FAILURE

    def __init__(self, operation: str, key: str, reason: str) -> None:
        super().__init__(operation, key, reason)
        self.operation = operation
        """A verb: read, create, upload, list, ..."""
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"could not {self.operation} {self.key} in the archive: {self.reason}"


class ObjectMissing(ArchiveFailure):
    """The archive has no object with this key."""

    def __init__(self, key: str) -> None:
        super().__init__("read", key, "there is no such object")


class ArchiveMissing(ArchiveFailure):
    """The store answered: the archive that is wanted is not there, or is still empty."""


class ArchiveGone(ArchiveFailure):
    """The store is not the one that was claimed: another disk is mounted, or none, or the bucket was emptied.

    Nothing may be written there, and nothing that was confirmed counts until it is found again.
    """

    def __init__(self, store: str, reason: str) -> None:
        super().__init__("find", store, reason)

    def __str__(self) -> str:
        return f"the archive is gone from {self.key}: {self.reason}"


class ArchiveInterrupted(ArchiveFailure):
    """The server stops. Nothing is wrong with the archive."""

    def __init__(self, key: str) -> None:
        super().__init__("use", key, "the server stops")


class ArchiveDamaged(ArchiveFailure):
    """An object of the archive is not what was stored."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__("use", key, reason)


class ArchiveTooNew(ArchiveFailure):
    """An object is of a later version of Courser. It is no damage, and nothing older may be used in its place."""

    def __init__(self, key: str, found: str, supported: str) -> None:
        """``found`` and ``supported``: for example a number of a format, and the only one that is known here."""
        reason = f"it has {found}, but this version of Courser ({__version__}) supports only {supported}"
        super().__init__("use", key, f"{reason}; use the later version that wrote it")


class StoreRefused(ArchiveFailure):
    """The store cannot be used for an archive: it ignores conditions, or its settings are wrong."""

    def __init__(self, store: str, reason: str) -> None:
        super().__init__("use", store, reason)

    def __str__(self) -> str:
        return f"the store {self.key} cannot be used for the archive: {self.reason}"


class ArchiveTakenOver(CourserError):
    """Another server writes this archive now. What this one accepted since then would be lost."""

    code = ErrorCode.ARCHIVE_TAKEN_OVER

    def __init__(self, store: str, epoch: int, own_epoch: int) -> None:
        super().__init__(store, epoch, own_epoch)
        self.store = store
        self.epoch = epoch
        self.own_epoch = own_epoch

    @property
    def reason(self) -> str:
        return (
            f"another server has taken over the archive at {self.store}: it has epoch {self.epoch}, and this server "
            f"had epoch {self.own_epoch}"
        )

    @property
    def remedy(self) -> str:
        return (
            "use the other server, and restore this one from the archive if it is needed; or, if this directory has "
            "the newer data, stop the other server and start this one once with "
            "--set data_maintenance.archiver.take_over=true"
        )

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"
