"""Reduces a Spark failure to one line. The full traces go to a log (``keep_trace``).

Spark wraps a Python error into the text of a Java exception, with the traces of both. The line that matters is the last
one of the innermost Python trace. Without such a trace it is Spark's own message, without its error codes and plans.
"""

import re
import traceback
from datetime import datetime
from pathlib import Path

from courser.errors import CourserError

_TRACE = "Traceback (most recent call last):"
_PYTHON_ERROR = re.compile(r"^(?P<module>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Za-z_]\w*)(?:: (?P<says>.*))?$")
_JAVA_ERROR = re.compile(r"(?:^|: )(?:[a-z_]\w*\.)+[\w$]*(?:Exception|Error): ")
_END = re.compile(r"\s+SQLSTATE: |\n\s*\n|\n\s*at |\n===|\n== |\n\nJVM stacktrace|;\n")
"""Where a message ends and Spark's additions begin."""
_PLACE = re.compile(r"SQLSTATE: \w+;? \(?line (\d+),? pos (\d+)")
_CONDITIONS = re.compile(
    r"^(?:\[[A-Z][\w.]*\] |Query \[id = [^\]]*\] terminated with exception: |Job aborted due to stage failure: )+"
)
_LOST_TASK = re.compile(r"^.*?most recent failure: Lost task [^)]*\)[^)]*\): ", re.DOTALL)
_WORKER = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((?P<host>\S+) executor")
_NO_PYTHON = re.compile(r'Cannot run program "(?P<python>[^"]+)"[^\n]*?: (?:error=\d+, )?(?P<reason>[^\n:]+)')
_OTHER_PYTHON = re.compile(
    r"Python in worker has different version: (?P<worker>\S+) than that in driver: (?P<driver>\S+),"
)
_NO_PYARROW = "ModuleNotFoundError: No module named 'pyarrow'"
_PYTHON_REMEDY = (
    "give the workers an archive of courser spark pack (--pack FILE), or set spark.pyspark.python to the path of a "
    "Python there that has Courser"
)
_CALLED = re.compile(r"^An error occurred while calling [^\n]*\n: ")
_LENGTH_MAX = 500
"""Characters of a line: Spark puts whole plans into some messages."""


def one_line(error: BaseException) -> str:
    """What went wrong, for a reader who knows neither Java nor Spark's internals."""
    if isinstance(error, CourserError):
        return _flat(str(error))
    text = _text(error)
    if said := _about_python(text):
        return said
    if _TRACE in text:
        return _python_line(text)
    if type(error).__module__.startswith(("pyspark", "py4j")):
        return _spark_line(text) or type(error).__name__
    said = _flat(text)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def is_slow_start(error: BaseException) -> bool:
    """Whether a Python worker did not start within the ten seconds that Spark allows. Worth a retry.

    The limit cannot be configured. A cold disk or an overloaded machine is enough to exceed it.
    """
    return "worker failed to connect back" in _text(error)


def keep_trace(error: BaseException, log: Path, moment: datetime) -> None:
    """Append everything known about a failure to a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pages = ["".join(traceback.format_exception(error))]
    # Spark keeps Java's trace separately from the message.
    if java := getattr(error, "_stackTrace", None):
        pages.append(f"Java:\n{java}")
    with log.open("a") as file:
        file.write(f"{moment.isoformat(timespec='seconds')} {one_line(error)}\n")
        file.writelines(f"{page.rstrip()}\n" for page in pages)


def _text(error: BaseException) -> str:
    """The message. Spark's errors ask Java for it, which may have exited."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 -- py4j raises whatever its connection meets
        return str(getattr(error, "_desc", "") or f"{type(error).__name__}, and Java has exited ({failure})")


def _about_python(text: str) -> str | None:
    """What is wrong with the Python of a worker, if Spark could not start it, refused it, or failed in it first."""
    where = _WORKER.search(text)
    worker = f"the worker {where['host']}" if where else "a worker"
    if found := _NO_PYTHON.search(text):
        # Outside of tasks, Spark runs Python on the driver's machine.
        place = worker if where else "this machine"
        return f"{place} cannot run {found['python']}: {found['reason'].strip()}; {_PYTHON_REMEDY}"
    if found := _OTHER_PYTHON.search(text):
        return (
            f"{worker} runs Python {found['worker']}, but the driver runs Python {found['driver']}, and Spark needs "
            f"the same minor version on both; {_PYTHON_REMEDY}"
        )
    if _NO_PYARROW in text:
        return f"the Python of {worker} has no pyarrow; {_PYTHON_REMEDY}"
    return None


def _python_line(text: str) -> str:
    """The error at the end of the last trace."""
    _, _, after = text.rpartition(_TRACE)
    lines = after.split("\n")[1:]
    start = next((number for number, line in enumerate(lines) if line and not line[0].isspace()), None)
    if start is None:
        return _spark_line(text)
    said = _cut("\n".join(lines[start:]))
    first, _, rest = said.partition("\n")
    found = _PYTHON_ERROR.match(first)
    if found is None:
        return _flat(said)
    message = _flat(f"{found['says'] or ''}\n{rest}")
    # Our own messages are complete sentences; for other errors the class name carries half of the meaning.
    return message if message and found["module"].startswith("courser.") else f"{found['name']}: {message}".rstrip(": ")


def _spark_line(text: str) -> str:
    place = _PLACE.search(text)
    text = _CALLED.sub("", text.strip())
    sentence = _cut(text)
    sentence = _LOST_TASK.sub("", sentence)
    while found := _JAVA_ERROR.search(sentence):
        sentence = sentence[found.end() :]
    sentence = _flat(_CONDITIONS.sub("", sentence))
    return f"{sentence.rstrip('.')} (line {place[1]}, position {place[2]})" if place else sentence


def _cut(text: str) -> str:
    return _END.split(text, maxsplit=1)[0].strip()


def _flat(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LENGTH_MAX else f"{line[:_LENGTH_MAX]}..."
