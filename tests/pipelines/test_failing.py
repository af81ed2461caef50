"""Which failures end a pipeline, and which lead to another attempt."""

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from courser.errors import AuthenticationFailed, ConnectionFailed, ErrorCode, TargetRefused
from courser.pipelines.failing import is_final, kind_of
from courser.spark.errors import retention_overtook

TRACE = """Query terminated with exception: An exception was raised by the Python Proxy.
Traceback (most recent call last):
  File "x.py", line 1, in y
{line}

	at org.apache.spark.Something(Other.scala:1)
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionFailed("127.0.0.1:1", "nobody listens"), False),
        (AuthenticationFailed(ErrorCode.INVALID_CREDENTIALS, "wrong password"), True),
        (TargetRefused("no such context"), True),
        (retention_overtook("s/t", 0, 1, 5), True),
        (AnalysisException("no such column"), True),
        (ConnectionRefusedError("Java is gone"), True),
        (RuntimeError("who knows"), False),
    ],
)
def test_errors_as_they_are(error: Exception, expected: bool) -> None:
    assert is_final(error) is expected


@pytest.mark.parametrize(
    ("line", "expected", "kind"),
    [
        ("courser.errors.ConnectionFailed: 127.0.0.1:1: nobody listens", False, "ConnectionFailed"),
        ("courser.errors.TimedOut: 127.0.0.1:1: no answer", False, "TimedOut"),
        ("courser.errors.AuthenticationFailed: wrong password", True, "AuthenticationFailed"),
        ("courser.spark.errors.DataLost: s/t: partition 0: 5 messages are gone", True, "DataLost"),
        ("OSError: [Errno 28] No space left on device", False, ""),
        ("_internal.SchemaMismatchError: Cannot cast schema", True, ""),
    ],
)
def test_errors_in_the_text_of_sparks_own(line: str, expected: bool, kind: str) -> None:
    error = StreamingQueryException(TRACE.format(line=line))
    assert (is_final(error), kind_of(error)) == (expected, kind)
