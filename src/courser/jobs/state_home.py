"""The default folder for the state of jobs and pipelines."""

import os
from collections.abc import Mapping
from pathlib import Path

STATE_VARIABLE = "COURSER_STATE_HOME"


def state_home(environment: Mapping[str, str] = os.environ) -> Path:
    """``$COURSER_STATE_HOME``, else ``$XDG_STATE_HOME/courser``, else ``~/.local/state/courser``."""
    if home := environment.get(STATE_VARIABLE):
        return Path(home)
    if home := environment.get("XDG_STATE_HOME"):
        return Path(home) / "courser"
    return Path(environment.get("HOME") or Path.home()) / ".local" / "state" / "courser"
