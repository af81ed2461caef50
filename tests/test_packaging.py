"""What users install: the archives, and a clean environment made of them."""

import json
import re
import shutil
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from courser import __version__
from tests.servers import RunningServer
from tests.wheels import ROOT, Builder, Environment, make_environment, run

LIBRARY = "_courser_frame_walk.abi3.so"


@pytest.fixture(scope="module")
def pure_wheel(builder: Builder, sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a machine without a C compiler makes it."""
    return builder.make_wheel(sdist, tmp_path_factory.mktemp("pure-wheel"), {"CC": "/nowhere/cc"})


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def names_in_source(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


# --- archives -----------------------------------------------------------------------------------------


def test_the_source_archive_has_all_that_it_takes_to_build_and_to_test(sdist: Path) -> None:
    names = names_in_source(sdist)
    assert {
        "src/courser/records/_frame_walk.c",
        "src/courser/records/_xxh3.h",
        "src/courser/records/_classic_frames.h",
        "src/courser/records/_frame_writing.h",
        "src/courser/records/_stored_batches.h",
        "src/courser/records/_whole_sends.h",
        "src/courser/py.typed",
        "hatch_build.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "Dockerfile",
        "packaging/courser.service",
        "docs/operations.md",
        "tests/test_packaging.py",
        "benchmarks/__main__.py",
    } <= names
    assert not [name for name in names if name.endswith((".so", ".pyc")) or "_cache/" in name or "__pycache__" in name]


def test_the_wheel_has_the_packages_and_nothing_else(wheel: Path, sdist: Path) -> None:
    names = names_in(wheel)
    folders = {name.partition("/")[0] for name in names}
    assert folders - {LIBRARY} == {"courser", "pyspark_courser", f"courser-{__version__}.dist-info"}
    sources = {name.removeprefix("src/") for name in names_in_source(sdist) if re.match(r"src/.*\.py$", name)}
    assert len(sources) > 200
    assert sources <= names
    examples = {f"courser/cli/examples/{name}.toml" for name in ("balanced", "durable", "production", "throughput")}
    console = {f"courser/console/{path.name}" for path in (ROOT / "src" / "courser" / "console").iterdir()}
    assert {"courser/py.typed", *examples, *console} <= names
    assert not [name for name in names if name.endswith((".c", ".pyc")) or "_cache/" in name or "__pycache__" in name]


def has_compiler() -> bool:
    return any(map(shutil.which, ("cc", "gcc", "clang")))


def test_a_compiled_wheel_is_for_every_python_from_3_11_on(wheel: Path) -> None:
    assert (LIBRARY in names_in(wheel)) is has_compiler()
    if has_compiler():
        assert re.fullmatch(rf"courser-{re.escape(__version__)}-cp311-abi3-linux_\w+\.whl", wheel.name)


def test_without_a_compiler_the_wheel_is_pure(pure_wheel: Path, wheel: Path) -> None:
    assert pure_wheel.name == f"courser-{__version__}-py3-none-any.whl"
    assert LIBRARY not in names_in(pure_wheel)
    assert names_in(pure_wheel) == names_in(wheel) - {LIBRARY}


def test_an_installation_leaves_the_checkout_alone(builder: Builder, sdist: Path, tmp_path: Path) -> None:
    """Several environments can use one checkout: none replaces the compiled part of another."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    tree = tmp_path / sdist.name.removesuffix(".tar.gz")
    before = {path: path.stat().st_mtime_ns for path in (tree / "src").rglob("*") if path.is_file()}
    (tmp_path / "editable").mkdir()
    (tmp_path / "usual").mkdir()
    editable = builder.make_editable_wheel(tree, tmp_path / "editable")
    usual = builder.make_wheel(tree, tmp_path / "usual")
    assert {path: path.stat().st_mtime_ns for path in (tree / "src").rglob("*") if path.is_file()} == before
    assert {LIBRARY in names_in(wheel) for wheel in (editable, usual)} == {has_compiler()}


def test_the_metadata_say_what_it_is(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert (metadata["Name"], metadata["Version"]) == ("courser", __version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Summary"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert (ROOT / "README.md").read_text().strip() == str(metadata.get_payload()).strip()
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= set(metadata.get_all("Classifier", []))
    assert {"arrow", "otel", "quic", "spark", "dev"} <= set(metadata.get_all("Provides-Extra", []))


# --- a clean environment ------------------------------------------------------------------------------


def test_the_command_is_there(installed: Environment, tmp_path: Path) -> None:
    assert run(installed.courser, "--version", cwd=tmp_path).stdout == f"courser {__version__}\n"


def test_every_module_can_be_imported_with_what_the_wheel_asks_for(installed: Environment, tmp_path: Path) -> None:
    program = (
        "import importlib, pkgutil, sys, courser\n"
        "names = [module.name for module in pkgutil.walk_packages(courser.__path__, 'courser.')]\n"
        "for name in names:\n"
        "    try: importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if not name.startswith(tuple(sys.argv[1:])) or error.name.startswith('courser'): raise\n"
        "print(len(names), courser.__file__)\n"
    )
    # Tables, OpenTelemetry, Spark and QUIC are extras. Nothing else may need them to be there.
    extras = ("client.arrow", "client.tracing", "demo.", "jobs.", "lake.", "pipelines.", "server.telemetry", "spark.")
    arguments = [f"courser.{name}" for name in (*extras, "transports.quic")]
    count, file = run(installed.python, "-c", program, *arguments, cwd=tmp_path).stdout.split(maxsplit=1)
    assert int(count) > 200
    assert Path(file).is_relative_to(installed.directory)


def test_the_compiled_part_is_used_if_it_is_there(installed: Environment, wheel: Path, tmp_path: Path) -> None:
    program = "from courser.records import frame_walk; print(frame_walk.is_compiled)"
    assert run(installed.python, "-c", program, cwd=tmp_path).stdout.strip() == str(LIBRARY in names_in(wheel))


def test_a_server_serves_and_answers(installed: Environment, tmp_path: Path) -> None:
    with RunningServer(tmp_path, program=installed.courser) as server:
        # Without a login: whoever looks after a server need not be its user.
        address = f"iggy://somebody:else@{server.address}"
        ping = run(installed.courser, "ping", "--url", address, "-o", "json", cwd=tmp_path)
        assert json.loads(ping.stdout)[0]["address"] == server.address
        url = f"iggy://iggy:iggy@{server.address}"
        bench = run(installed.courser, "bench", "send", "--messages", "100", "--url", url, "-o", "json", cwd=tmp_path)
        assert json.loads(bench.stdout)["groups"][0]["messages"] == 100
        assert server.stop() == 0


def test_a_server_without_the_compiled_part(
    installed: Environment, pure_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("pure")
    environment = make_environment(directory / "environment")
    # Its dependencies are those of the other environment: only the package itself differs.
    (site,) = (installed.directory / "lib").glob("python*/site-packages")
    (own,) = (environment.directory / "lib").glob("python*/site-packages")
    shutil.copytree(
        site,
        own,
        dirs_exist_ok=True,
        symlinks=True,
        ignore=lambda _, names: [n for n in names if n.startswith(("courser", LIBRARY))],
    )
    environment.install("--no-deps", "--no-index", str(pure_wheel))
    program = "from courser.records import frame_walk; print(frame_walk.is_compiled)"
    assert run(environment.python, "-c", program, cwd=directory).stdout == "False\n"
    with RunningServer(directory / "server", program=environment.courser) as server:
        url = f"iggy://iggy:iggy@{server.address}"
        run(environment.courser, "bench", "both", "--messages", "100", "--url", url, "-o", "json", cwd=directory)
        run(environment.courser, "ping", "--url", url, cwd=directory)
