"""Objects that the driver sends to tasks, and which say what the Python of a task lacks to receive them.

Without this, a worker that has no Courser, another version of it, or no pyarrow would fail somewhere in Spark's own
code, with two pages that name neither the machine nor the Python.
"""

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from courser import __version__

_REMEDY = (
    "give the workers an archive of courser spark pack (spark_session(..., pack=FILE), or --pack), or the path of a "
    "Python that has the driver's version of Courser (spark.pyspark.python)"
)


class SentToTasks:
    """Checks the Python of a task when an object arrives there, before Courser is imported."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        content = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        call = _Call(__version__, _REMEDY, content)
        return cloudpickle.loads, (cloudpickle.dumps(call),)  # type: ignore[no-untyped-call]


class _Call:
    """Is unpickled by a call of ``_receive``."""

    def __init__(self, *arguments: object) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return _receive, self._arguments


def _receive(version: str, remedy: str, content: bytes) -> Any:
    """Runs where nothing may be installed, so it is sent itself, and imports all that it needs."""
    import importlib  # noqa: PLC0415
    import os  # noqa: PLC0415
    import pickle  # noqa: PLC0415
    import socket  # noqa: PLC0415
    import sys  # noqa: PLC0415

    problem = ""
    for name in ("courser", "pyarrow", "numpy", "courser.spark.data_source"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            problem = f"has no {name}" if getattr(error, "name", "") == name else f"cannot import {name}: {error}"
            break
        if name == "courser" and module.__version__ != version:
            problem = f"has Courser {module.__version__}, but the driver has {version}"
            break
    if problem:
        # Spark would print the trace first, and it says nothing more.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        numbers = ".".join(map(str, sys.version_info[:3]))
        raise ImportError(
            f"the Python {numbers} that Spark runs on {socket.gethostname()}, {sys.executable}, {problem}; {remedy}"
        )
    kind, state = pickle.loads(content)
    made = kind.__new__(kind)
    made.__dict__.update(state or {})
    return made


# Not found under this name: pickled with its code, rather than as a name in a module that workers may lack.
_receive.__module__ = "__main__"
