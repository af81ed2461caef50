"""The command line in a process that dies at a certain step: ``python -m tests.pipelines.dying FUNCTION CALL ...``.

FUNCTION is the full name of a function or a method, CALL says which call of it is the last thing that the process does:
SIGKILL comes before the function runs. What follows are the arguments of ``courser``.
"""

import os
import pkgutil
import signal
import sys
from collections.abc import Callable

from courser.cli.main import run


def dies_at(name: str, last: int) -> None:
    """Replace the function."""
    owner_name, _, function_name = name.rpartition(".")
    owner = pkgutil.resolve_name(owner_name)
    function: Callable[..., object] = getattr(owner, function_name)
    calls = 0

    def call(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)

    setattr(owner, function_name, call)


if __name__ == "__main__":
    dies_at(sys.argv[1], int(sys.argv[2]))
    sys.exit(run(sys.argv[3:]))
