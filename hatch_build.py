"""Compiles the one C module, where there is a compiler. Where there is none, the package works without, in Python.

The library is built outside the source tree, and installed as a module of its own beside the package. An editable
installation has it in its own environment too: several environments can use one checkout, each with its own library.

``COURSER_WHEEL_PLATFORM`` in the environment names the platform of the wheel, such as ``manylinux_2_17_aarch64``. The
compiler, ``CC``, must produce code for that platform. The build fails if it cannot; ``any`` builds a wheel without C.
"""

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/courser/records/_frame_walk.c")
# The stable ABI: one file for every CPython from 3.11 on.
LIBRARY = "_courser_frame_walk.abi3.so"
OLDEST_PYTHON = "cp311"
"""Whose stable ABI that is: the file says so itself, in its first lines."""


class FrameWalkHook(BuildHookInterface):
    """Part of every wheel, and of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 -- hatchling's signature
        """Called by hatchling before it collects files."""
        platform = os.environ.get("COURSER_WHEEL_PLATFORM")
        if platform == "any":
            return
        self._directory = tempfile.TemporaryDirectory(prefix="courser-build-")
        library = Path(self._directory.name) / LIBRARY
        try:
            compile_library(Path(self.root) / SOURCE, library)
        except (OSError, subprocess.CalledProcessError) as error:
            if platform:
                reason = getattr(error, "stderr", None) or error
                self.app.abort(f"cannot compile {SOURCE} for {platform}: {reason}")
            self.app.display_info(f"{SOURCE} was not compiled: the same functions in Python will be used")
            return
        # The second one is for editable installations, whose other files stay in the source tree.
        build_data["force_include"][str(library)] = LIBRARY
        build_data["force_include_editable"][str(library)] = LIBRARY
        build_data["pure_python"] = False
        build_data["tag"] = f"{OLDEST_PYTHON}-abi3-{platform or this_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Called by hatchling when the wheel is written."""
        if hasattr(self, "_directory"):
            self._directory.cleanup()


def this_platform() -> str:
    """This machine, as the name of a wheel has it."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def compile_library(source: Path, library: Path) -> None:
    """Make the library, or raise."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")
    # With -O2, GCC leaves the loops of the hash as they are: large classic messages take three times as long.
    options = ("-O3", "-fPIC", "-shared", "-I", sysconfig.get_path("include"))
    command = [*shlex.split(compiler), *options, str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, text=True)
