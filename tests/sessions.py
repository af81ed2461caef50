"""Processes with all that came of them: killed, waited for, gone."""

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

_PATIENCE = 60.0
"""Seconds that the kernel gets to end what was killed."""


def kill_session(leader: "subprocess.Popen[Any]") -> None:
    """Kill a process that began a session, with all that came of it, and wait until the last one is gone.

    Children of a runner of Spark share its session but not its process group, and live on for a while when it is
    killed: Java until it notices, PySpark's daemon and its workers until they notice that Java is gone.
    """
    while found := _handles_of(leader.pid):
        for handle in found:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        for handle in found:
            assert select.select([handle], [], [], _PATIENCE)[0], "a process outlives SIGKILL"
            os.close(handle)
    leader.wait(_PATIENCE)


def _handles_of(session: int) -> list[int]:
    """The living processes of a session; unlike its number, a handle never comes to mean another process."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            handle = os.pidfd_open(int(place.name))
            if _session_of(place) == session:
                found.append(handle)
            else:
                os.close(handle)
    return found


def _session_of(place: Path) -> int | None:
    # Behind the name, which may hold anything: state, parent, group, session.
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        state, _, _, session, *_ = (place / "stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(session)
    return None
