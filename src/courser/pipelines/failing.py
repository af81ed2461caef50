"""Which failures are worth another attempt, and which stay whatever one does."""

import re

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

_PASSING = (ConnectionFailed, ServerFailure, ClientClosed)
"""Another attempt may find the server again, or a disk with room."""
_PASSING_NAMES = frozenset(
    {"ConnectionFailed", "TimedOut", "Uncertain", "ServerFailure", "ClientClosed", "ConnectionFailure"}
)
_FINAL_SPARK = frozenset({"AnalysisException", "ParseException", "IllegalArgumentException"})
_OURS = re.compile(r"^courser(?:\.\w+)*\.(?P<name>[A-Za-z_]\w*)(?::|$)", re.MULTILINE)
_FINAL_WORDS = ("[USER_RAISED_EXCEPTION]", "[DATA_SOURCE_NOT_FOUND]", "SchemaMismatchError", "TooManyFolders")
"""A bad row, or rows that a table or a folder does not take: they come again with every attempt."""
_JAVA_IS_GONE = frozenset({"Py4JNetworkError", "ConnectionRefusedError"})


def is_final(error: BaseException) -> bool:
    """Whether another attempt would only fail again."""
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
    """Whether Spark's Java process has ended: then every call of Spark fails, and this process cannot go on."""
    return type(error).__name__ in _JAVA_IS_GONE


def kind_of(error: BaseException) -> str:
    """The name of the class of ours at the bottom of a failure; nothing if it is none of ours."""
    if isinstance(error, CourserError):
        for kind in (AuthenticationFailed, NotAllowed, NotFound, ConnectionFailed):
            if isinstance(error, kind):
                return kind.__name__
        return type(error).__name__ if isinstance(error, ClientFailure) else ""
    # The last one in the text is the innermost trace's: Spark puts causes behind what they caused.
    found = _OURS.findall(_text(error))
    return found[-1] if found else ""


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 -- errors of Spark ask Java for their text, which may have ended
        return str(failure)
