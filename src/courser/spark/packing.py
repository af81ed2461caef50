"""Packs this Python with Courser and all it needs into one archive, for workers on which nothing is installed.

An environment that is merely copied (``venv-pack``) has links to an interpreter that workers lack. So the archive has
the interpreter itself, its standard library, and the shared libraries that both need, except the C library. pyspark is
not in it: Spark gives its workers the one that it comes with.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from courser.errors import CourserError

FOLDER = "environment"
"""The folder in which a worker finds the contents of the archive, beside the work of its executor."""
PYTHON = f"./{FOLDER}/bin/python"
"""The interpreter in it, from where an executor starts."""
SQL_PYTHON = "spark.sql.execution.pyspark.python"
"""The setting of Spark that says which interpreter runs the tasks of queries."""

_OURS = ("courser", "pyspark_courser", "_courser_frame_walk")
_REQUIRED = "courser[spark]"
_OPTIONAL = "courser[compression,s3]"
"""What tasks may need, depending on how topics are stored. It is packed if it is installed."""
_LEFT_OUT = frozenset({"py4j", "pyspark", "pyspark-client"})
_NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"

_UNUSED_FOLDERS = frozenset({"__pycache__", "include", "test", "tests"})
_UNUSED_OF_PYTHON = re.compile(
    rf"(config-.*|dist-packages|ensurepip|idlelib|lib2to3|site-packages|sitecustomize\.py|tkinter|turtledemo|"
    rf"lib{_NAME}.*\.a|(_tkinter|_test.*|xx.*|nis|readline|_curses.*|_g?dbm|ossaudiodev)\..*\.so)"
)
"""Tests, windows and terminals: no task has use for them."""
_UNUSED_OF_PACKAGES = re.compile(
    r".*\.(a|c|cpp|h|hpp|pth|pxd|pxi|pyi|pyx)|_(flight|pyarrow_cpp_tests)\..*\.so|libarrow_(python_)?flight\..*"
)
"""Sources, and the part of pyarrow that talks to databases, a fifth of it."""
_LIBRARY = re.compile(r"^\s*(\S+) => (/\S+) \(", re.MULTILINE)
_GLIBC = re.compile(rb"GLIBC_(2\.\d+)\0")
_C_LIBRARY = re.compile(r"(ld-|lib(c|m|dl|rt|pthread|util|resolv|nsl|anl|mvec)\.)")
"""The parts of the C library: they belong to the machine."""
_REQUIREMENT = re.compile(r"^([\w.-]+)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?$")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")

_STARTER = f"""\
#!/bin/sh
# Starts the interpreter beside this file with the libraries that came with it, wherever they are.
root=$(cd "${{0%/*}}/.." && pwd -P) || exit 127
export LD_LIBRARY_PATH="$root/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" PYTHONNOUSERSITE=1
unset PYTHONHOME
exec "$root/bin/{_NAME}" "$@"
"""
_SITE = "import site, os.path\nsite.addsitedir(os.path.join(os.path.dirname(__file__), 'site-packages'))\n"
_CHECK = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
_USED = (
    "bz2 ctypes hashlib lzma sqlite3 ssl uuid zlib courser.spark.data_source courser.client.sync pyarrow.parquet pandas"
)
"""What tasks import, and modules of Python that need libraries of the system."""


class PackFailed(CourserError):
    """The archive cannot be made."""


@dataclass(frozen=True, slots=True)
class Pack:
    """An archive that was made."""

    path: Path
    size: int
    """Bytes."""
    glibc: str
    """The oldest version of the C library with which it starts; empty if it needs another C library."""
    packages: Mapping[str, str]
    """The version of each package in it."""


def make_pack(target: Path, added: Sequence[str] = ()) -> Pack:
    """Write the archive, and replace it if it exists. What is packed has been started and imported under another path.

    Args:
        target: Ends in ``.tar.gz``.
        added: More installed packages, such as ``requests`` or ``courser[lake]``.

    Raises:
        PackFailed: a package is not installed, or does not work where it was packed.
    """
    packages = _closure(added)
    with tempfile.TemporaryDirectory(prefix="courser-pack-") as place:
        root = Path(place, FOLDER)
        library = root / sys.platlibdir / _NAME
        _copy_python(root, library)
        packed = library / "site-packages"
        for package in packages:
            _copy_package(package, packed)
        _copy_libraries(root)
        # Debian's interpreter does not look there by itself.
        (library / "sitecustomize.py").write_text(_SITE)
        _check(root)
        glibc = _needed_glibc(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.part")
        try:
            with tarfile.open(unfinished, "w:gz", compresslevel=6) as archive:
                for path in sorted(root.iterdir()):
                    archive.add(path, path.name, filter=_without_owner)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    return Pack(target, target.stat().st_size, glibc, {one.name: one.version for one in packages})


def pack_settings(pack: str, master: str) -> dict[str, str]:
    """The settings of a session whose workers get the archive."""
    # YARN copies it once to each machine, the others once to each executor.
    key = "spark.yarn.dist.archives" if master.startswith("yarn") else "spark.archives"
    return {key: f"{pack}#{FOLDER}", "spark.pyspark.python": PYTHON}


# --- what is packed -----------------------------------------------------------------------------------


def _closure(added: Sequence[str]) -> list[importlib.metadata.Distribution]:
    """Courser and what it needs, each package once, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    open_ends = [(_REQUIRED, True), (_OPTIONAL, False), *((one, True) for one in added)]
    done: set[tuple[str, str]] = set()
    while open_ends:
        text, is_required = open_ends.pop()
        name, extras = _parts(text)
        if name.lower() in _LEFT_OUT:
            continue
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if is_required:
                raise PackFailed(f"{name} is not installed in {sys.prefix}; install it there, and pack again") from None
            continue
        found[package.name] = package
        for extra in ("", *extras):
            if (package.name, extra) not in done:
                done.add((package.name, extra))
                # Whether a dependency is for this machine is known from whether it is installed.
                open_ends += [(line, False) for line in _required(package, extra)]
    return sorted(found.values(), key=lambda package: package.name.lower())


def _parts(requirement: str) -> tuple[str, list[str]]:
    parts = _REQUIREMENT.match(requirement)
    if parts is None:
        raise PackFailed(f'"{requirement}" is not the name of a package')
    return parts[1], [extra.strip() for extra in (parts[2] or "").split(",") if extra.strip()]


def _required(package: importlib.metadata.Distribution, extra: str) -> Iterator[str]:
    """What a package needs itself, or for an extra."""
    for line in package.requires or ():
        marker = _EXTRA.search(line.partition(";")[2])
        if (marker[1] if marker else "") == extra:
            yield line


# --- copies -------------------------------------------------------------------------------------------


def _copy_python(root: Path, library: Path) -> None:
    """The interpreter, and its standard library."""
    bin_folder = root / "bin"
    bin_folder.mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), bin_folder / _NAME)
    starter = bin_folder / "python"
    starter.write_text(_STARTER)
    starter.chmod(0o755)
    (bin_folder / "python3").symlink_to("python")
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_unused_of_python)


def _unused_of_python(folder: str, names: list[str]) -> set[str]:
    del folder
    return {name for name in names if name in _UNUSED_FOLDERS or _UNUSED_OF_PYTHON.fullmatch(name)}


def _copy_package(package: importlib.metadata.Distribution, packed: Path) -> None:
    files = package.files
    if not files:
        raise PackFailed(f"{package.name} does not say which files it has; install it with pip, and pack again")
    is_ours = package.name == "courser"
    if not is_ours and '"editable": true' in (package.read_text("direct_url.json") or ""):
        raise PackFailed(f"{package.name} is installed as a link to its sources; install a wheel of it, and pack again")
    for file in files:
        # What is beside the packages is scripts, which name the interpreter of this machine.
        if file.parts[0] != ".." and _is_used(file) and (not is_ours or ".dist-info" in file.parts[0]):
            _copy(Path(str(package.locate_file(file))), packed / file)
    for name in _OURS if is_ours else ():
        _copy_ours(name, packed)


def _copy_ours(name: str, packed: Path) -> None:
    """From where it is imported: of a checkout, the environment has a link only."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        # The compiled part is missing where there was no compiler. The rest does without.
        return
    for folder in found.submodule_search_locations or ():
        for path in Path(folder).rglob("*"):
            relative = path.relative_to(folder)
            if path.is_file() and _is_used(relative):
                _copy(path, packed / name / relative)
    if found.submodule_search_locations is None:
        _copy(Path(found.origin), packed / Path(found.origin).name)


def _is_used(file: PurePath) -> bool:
    return not _UNUSED_OF_PACKAGES.fullmatch(file.name) and _UNUSED_FOLDERS.isdisjoint(file.parts[:-1])


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _copy_libraries(root: Path) -> None:
    """Libraries of this machine that the interpreter and modules ask the loader for."""
    files = [root / "bin" / _NAME, *root.rglob("*.so*")]
    search = os.environ | {"LD_LIBRARY_PATH": f"{sysconfig.get_config_var('LIBDIR')}"}
    shown = subprocess.run(["ldd", *files], env=search, capture_output=True, text=True, check=False).stdout
    (root / "lib").mkdir(exist_ok=True)
    for name, path in sorted(set(_LIBRARY.findall(shown))):
        if not _C_LIBRARY.match(name) and not Path(path).is_relative_to(root):
            shutil.copy(path, root / "lib" / name)


def _needed_glibc(root: Path) -> str:
    """The newest version that any library mentions."""
    found = {
        version
        for path in (root / "bin" / _NAME, *root.rglob("*.so*"))
        for version in _GLIBC.findall(path.read_bytes())
    }
    newest = max((tuple(map(int, version.split(b"."))) for version in found), default=())
    return ".".join(map(str, newest))


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _check(root: Path) -> None:
    """Start what was packed, with nothing else, as a worker does: pyspark comes from Spark."""
    import pyspark  # noqa: PLC0415 -- optional

    zips = sorted(Path(pyspark.__path__[0], "python", "lib").glob("*.zip"))
    modules = [*_USED.split(), *(name for name in _OURS if importlib.util.find_spec(name))]
    started = subprocess.run(
        [root / "bin" / "python", "-B", "-c", _CHECK, *modules],
        cwd="/",
        env={"PYTHONPATH": os.pathsep.join(map(str, zips))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if started.returncode:
        reason = next(iter(reversed(started.stderr.strip().splitlines())), f"exit status {started.returncode}")
        raise PackFailed(f"what was packed does not work: {reason}")


_INSTRUCTIONS = """\
Standalone, and Kubernetes with the driver as a pod:
  courser pipeline run orders.toml --master spark://HOST:7077 --pack {pack}
  spark_session("orders", "spark://HOST:7077", pack="{pack}")
YARN:
  PYSPARK_PYTHON={python} spark-submit --master yarn --deploy-mode cluster \\
    --conf spark.yarn.dist.archives={pack}#{folder} program.py
Kubernetes with spark-submit, the archive at an address that pods can read:
  PYSPARK_PYTHON={python} spark-submit --master k8s://https://HOST:6443 --deploy-mode cluster \\
    --conf spark.archives=s3a://BUCKET/{name}#{folder} s3a://BUCKET/program.py
An image:
  ADD {name} /opt/{folder}
  ENV PYSPARK_PYTHON=/opt/{folder}/bin/python
Spark Connect, in the client's program:
  spark.addArtifact("{pack}#{folder}", archive=True)
  spark.conf.set("spark.sql.execution.pyspark.python", "{python}")
Any other session:
  .config("spark.archives", "{pack}#{folder}")
  .config("spark.sql.execution.pyspark.python", "{python}")\
"""


def instructions(pack: Path) -> str:
    """What to do with an archive, for each way to run Spark."""
    return _INSTRUCTIONS.format(pack=pack, name=pack.name, folder=FOLDER, python=PYTHON)
