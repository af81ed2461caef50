"""Compiles the one C module, where there is a compiler. Where there is none, the package works without, in Python."""

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/courser/records/_frame_walk.c")
# The stable ABI: one file for every CPython from 3.11 on.
LIBRARY = SOURCE.with_suffix(".abi3.so")
OLDEST_PYTHON = "cp311"
"""Whose stable ABI that is: the file says so itself, in its first lines."""


class FrameWalkHook(BuildHookInterface):
    """Part of every wheel, and of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 -- hatchling's signature
        """Called by hatchling before it collects files."""
        if compile_library(Path(self.root)):
            build_data["artifacts"].append(f"/{LIBRARY}")
            build_data["pure_python"] = False
            build_data["tag"] = f"{OLDEST_PYTHON}-abi3-{platform_tag()}"
        else:
            self.app.display_info(f"{SOURCE} was not compiled: the same functions in Python will be used")


def platform_tag() -> str:
    """This machine, as the name of a wheel has it."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def compile_library(root: Path) -> bool:
    """Make the library beside its source, and say whether it is there. An older one never stays."""
    library, new = root / LIBRARY, root / LIBRARY.with_suffix(".new")
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")
    options = ("-O2", "-fPIC", "-shared", "-I", sysconfig.get_path("include"))
    try:
        subprocess.run(
            [*shlex.split(compiler), *options, str(root / SOURCE), "-o", str(new)], check=True, capture_output=True
        )
        # In one step: a process that has the old one loaded keeps it.
        new.replace(library)
    except (OSError, subprocess.CalledProcessError):
        library.unlink(missing_ok=True)
        new.unlink(missing_ok=True)
        return False
    return True
