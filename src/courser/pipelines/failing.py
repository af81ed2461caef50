"""Decides which failures are worth a retry and which are permanent."""

import re

from courser.archive.errors import ArchiveFailure
from courser.errors import (
    AuthenticationFailed,
    ClientClosed,
    ClientFailure,
    ConnectionFailed,
    CourserError,
    NotAllowed,
    NotFound,
    ServerFailure,
)
from courser.jobs.folders import FolderUnreachable
from courser.lake.tables import CommitUnsettled
from courser.pipelines.leases import LeaseLate
from courser.spark.connect import SparkUnreachable

_PASSING = (
    ConnectionFailed,
    ServerFailure,
    ClientClosed,
    SparkUnreachable,
    FolderUnreachable,
    LeaseLate,
    CommitUnsettled,
    ArchiveFailure,
)
"""A retry may succeed: the server or the object store may be back, or the disk may have space again."""
_PASSING_NAMES = frozenset(
    {"ConnectionFailed", "TimedOut", "Uncertain", "ServerFailure", "ClientClosed", "ConnectionFailure"}
    | {"FolderUnreachable", "CommitUnsettled", "ArchiveFailure"}
)
_FINAL_SPARK = frozenset({"AnalysisException", "ParseException", "IllegalArgumentException"})
_OURS = re.compile(r"^courser(?:\.\w+)*\.(?P<name>[A-Za-z_]\w*)(?::|$)", re.MULTILINE)
_FINAL_WORDS = (
    "[USER_RAISED_EXCEPTION]",
    "[DATA_SOURCE_NOT_FOUND]",
    "SchemaMismatchError",
    "TooManyFolders",
    "NotInstalledError",
)
"""A bad row, rows that a table or folder rejects, or a package that is missing: they come again with every retry."""
_JAVA_IS_GONE = frozenset({"Py4JNetworkError", "ConnectionRefusedError"})


def is_final(error: BaseException) -> bool:
    """Whether a retry would only fail again."""
    if isinstance(error, CourserError):
        return not isinstance(error, _PASSING)
    kind = type(error).__name__
    if kind in _FINAL_SPARK or is_java_gone(error):
        return True
    text = _text(error)
    if any(word in text for word in _FINAL_WORDS):
        return True
    name = kind_of(error)
    return name != "" and name not in _PASSING_NAMES


def is_java_gone(error: BaseException) -> bool:
    """Whether Spark's Java process has exited. Then every call to Spark fails, and this process cannot continue."""
    return type(error).__name__ in _JAVA_IS_GONE


def kind_of(error: BaseException) -> str:
    """The class name of the Courser error that caused a failure; empty if it was not one of ours."""
    if isinstance(error, CourserError):
        for kind in (AuthenticationFailed, NotAllowed, NotFound, ConnectionFailed):
            if isinstance(error, kind):
                return kind.__name__
        return type(error).__name__ if isinstance(error, ClientFailure) else ""
    # The last one in the text belongs to the innermost trace: Spark prints causes after what they caused.
    found = _OURS.findall(_text(error))
    return found[-1] if found else ""


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 -- errors of Spark ask Java for their text, which may have ended
        return str(failure)
