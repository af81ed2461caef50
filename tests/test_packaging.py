"""What users install: the archives, a clean environment made of them, the container and the systemd unit."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from courser import __version__
from tests.servers import RunningServer
from tests.wheels import ROOT, Builder, Environment, clean_variables, make_environment, run

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
    assert not [name for name in names if name.endswith((".so", ".pyc")) or "_cache" in name]


def test_the_wheel_has_the_packages_and_nothing_else(wheel: Path, sdist: Path) -> None:
    names = names_in(wheel)
    folders = {name.partition("/")[0] for name in names}
    assert folders - {LIBRARY} == {"courser", "pyspark_courser", f"courser-{__version__}.dist-info"}
    sources = {name.removeprefix("src/") for name in names_in_source(sdist) if re.match(r"src/.*\.py$", name)}
    assert len(sources) > 200
    assert sources <= names
    examples = {f"courser/cli/examples/{name}.toml" for name in ("balanced", "durable", "production", "throughput")}
    assert {"courser/py.typed", *examples} <= names
    assert not [name for name in names if name.endswith((".c", ".pyc")) or "_cache" in name]


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
    assert {"arrow", "spark", "dev"} <= set(metadata.get_all("Provides-Extra", []))


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
    # Tables and Spark are extras. Nothing else may need them to be there.
    extras = ("client.arrow", "demo.", "jobs.", "lake.", "pipelines.", "spark.")
    arguments = [f"courser.{name}" for name in extras]
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
        ignore=lambda _, names: [n for n in names if n.startswith("courser")],
    )
    environment.install("--no-deps", "--no-index", str(pure_wheel))
    with RunningServer(directory / "server", program=environment.courser) as server:
        url = f"iggy://iggy:iggy@{server.address}"
        run(environment.courser, "bench", "both", "--messages", "100", "--url", url, "-o", "json", cwd=directory)
        run(environment.courser, "ping", "--url", url, cwd=directory)


# --- the container ------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile: its instructions with their arguments, continuation lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    start = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def argument_of(instruction: str) -> str:
    (argument,) = (argument for word, argument in last_stage() if word == instruction)
    return argument


def variables_of_the_image() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(argument_of("ENV")))


KNOWN = {
    "FROM",
    "COPY",
    "RUN",
    "ENV",
    "USER",
    "WORKDIR",
    "VOLUME",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
}


def test_the_dockerfile_is_made_of_known_instructions() -> None:
    assert {word for word, _ in instructions()} == KNOWN


def test_images_have_a_version_that_is_new_enough_and_the_last_one_is_small() -> None:
    images = [argument for word, argument in instructions() if word == "FROM"]
    for image in images:
        found = re.fullmatch(r"python:3\.(\d+)(-slim)?( AS \w+)?", image)
        assert found, image
        assert int(found[1]) >= 11
    assert images[-1].endswith("-slim")


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*"
    kept = {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")}
    copied = [word for name, argument in instructions() if name == "COPY" for word in argument.split()[:-1]]
    assert set(copied) == kept
    assert all((ROOT / name).exists() for name in copied)
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # What the build reads.
    assert {configuration["project"]["readme"], *configuration["project"]["license-files"]} <= kept
    assert configuration["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["path"] in kept


def test_nothing_runs_as_root_and_the_data_is_in_a_volume() -> None:
    stage = last_stage()
    user = argument_of("USER")
    creation = next(argument for word, argument in stage if word == "RUN")
    assert re.search(rf"useradd .*--uid [1-9]\d+ .*{user}$", creation)
    # Nothing but metadata follows: all files belong to root, but for the home of the user.
    words = [word for word, _ in stage]
    assert "RUN" not in words[words.index("USER") :]
    (volume,) = json.loads(argument_of("VOLUME"))
    assert argument_of("WORKDIR") == volume
    assert f"--home-dir {volume} --create-home" in creation
    assert variables_of_the_image()["COURSER_SYSTEM_PATH"].startswith(f"{volume}/")


def test_commands_are_lists_so_that_signals_reach_the_server() -> None:
    assert json.loads(argument_of("ENTRYPOINT")) == ["courser"]
    assert json.loads(argument_of("CMD")) == ["serve"]
    assert argument_of("STOPSIGNAL") == "SIGTERM"


def test_the_image_holds_no_password() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert "COURSER_ROOT_PASSWORD" not in "".join(argument for _, argument in instructions())
    assert "with-default-root-credentials" not in text


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Stands in for the volume of the image."""
    return tmp_path / "volume"


@pytest.fixture
def image_variables(volume: Path) -> dict[str, str]:
    """Those of the image, with a place and a port that are free here."""
    variables = variables_of_the_image()
    (mounted,) = json.loads(argument_of("VOLUME"))
    port = argument_of("EXPOSE")
    assert variables["COURSER_TCP_ADDRESS"] == f"0.0.0.0:{port}", "the container listens on all interfaces"
    variables["COURSER_SYSTEM_PATH"] = variables["COURSER_SYSTEM_PATH"].replace(mounted, str(volume))
    return {**clean_variables(), **variables, "COURSER_TCP_ADDRESS": "127.0.0.1:0"}


def test_without_a_password_the_first_start_says_what_is_missing(
    installed: Environment, image_variables: dict[str, str]
) -> None:
    result = subprocess.run(
        [installed.courser, *json.loads(argument_of("CMD"))],
        env=image_variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 2
    assert "COURSER_ROOT_PASSWORD" in result.stderr


class Contained(RunningServer):
    """What the image would run: its command with its variables, and a password from outside."""

    def __init__(self, directory: Path, program: Path, variables: dict[str, str]) -> None:
        super().__init__(directory, program=program, arguments=json.loads(argument_of("CMD"))[1:])
        self.data = Path(variables["COURSER_SYSTEM_PATH"])
        self._variables = variables

    def _environment(self) -> dict[str, str]:
        return {**self._variables, "COURSER_ROOT_PASSWORD": "a secret of the test"}


@pytest.fixture
def contained(installed: Environment, image_variables: dict[str, str], tmp_path: Path) -> Iterator[RunningServer]:
    with Contained(tmp_path / "outside", installed.courser, image_variables) as server:
        yield server


def health_check() -> list[str]:
    command = argument_of("HEALTHCHECK").partition("CMD ")[2]
    found: list[str] = json.loads(command)
    assert all(isinstance(word, str) for word in found)
    return found


def test_the_health_check_follows_the_server(
    contained: RunningServer, installed: Environment, image_variables: dict[str, str]
) -> None:
    program, *arguments = health_check()
    assert program == json.loads(argument_of("ENTRYPOINT"))[0]
    address = f"127.0.0.1:{argument_of('EXPOSE')}"
    assert address in arguments
    here = [contained.address if word == address else word for word in arguments]
    check = [str(installed.courser), *here]
    healthy = subprocess.run(check, env=image_variables, capture_output=True, text=True, timeout=60, check=False)
    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert contained.stop() == 0
    assert subprocess.run(check, env=image_variables, capture_output=True, timeout=60, check=False).returncode == 3


def test_the_password_of_the_environment_is_that_of_root(contained: RunningServer, installed: Environment) -> None:
    variables = {"COURSER_USERNAME": "iggy", "COURSER_PASSWORD": "a secret of the test"}
    me = run(installed.courser, "me", "--url", contained.address, "-o", "json", variables=variables)
    assert json.loads(me.stdout)["user_id"] == 0
    assert "a secret of the test" not in contained.output


def test_the_container_logs_to_its_output_only(contained: RunningServer) -> None:
    assert "listening" in contained.output
    assert not (contained.data / "logs" / "courser.log").exists()


def test_compose_has_a_named_volume_where_the_image_keeps_its_data() -> None:
    text = (ROOT / "packaging" / "compose.yaml").read_text()
    (volume,) = json.loads(argument_of("VOLUME"))
    assert f"- courser-data:{volume}\n" in text
    assert re.search(r"^volumes:\n  courser-data:\n", text, re.MULTILINE)
    assert "COURSER_ROOT_PASSWORD: ${COURSER_ROOT_PASSWORD:?" in text


# --- systemd ------------------------------------------------------------------------------------------

UNIT = ROOT / "packaging" / "courser.service"


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the names keep their capitals
    parser.read(UNIT)
    return parser


def test_the_unit_restarts_what_failed_and_gives_it_enough_files(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert int(service["LimitNOFILE"]) >= 65536
    # Longer than the server takes for its own grace, which is 10 s, and for syncing.
    assert int(service["TimeoutStopSec"]) > 30
    assert service["User"] != "root"
    assert unit["Install"]["WantedBy"] == "multi-user.target"


HARDENING = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "CapabilityBoundingSet": "",
    "RestrictNamespaces": "yes",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
}


def test_the_unit_leaves_the_server_little_to_do_besides_serving(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert {name: service[name] for name in HARDENING} == HARDENING
    # The one place that it may write to is where its data goes.
    state = f"/var/lib/{service['StateDirectory']}"
    assert service["WorkingDirectory"] == state
    assert service["Environment"].removeprefix("COURSER_SYSTEM_PATH=").startswith(f"{state}/")


def test_the_unit_starts_a_command_that_exists(
    unit: configparser.ConfigParser, installed: Environment, tmp_path: Path
) -> None:
    program, verb, *options = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, verb) == ("courser", "serve")
    configuration = tmp_path / "server.toml"
    example = run(installed.courser, "config", "example", "production").stdout
    configuration.write_text(example)
    here = [str(configuration) if word == "/etc/courser/server.toml" else word for word in options]
    assert here != options
    shown = run(installed.courser, "config", "show", *here, cwd=tmp_path).stdout
    assert tomllib.loads(shown)["tcp"]["address"]


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text()
    copy = tmp_path / UNIT.name
    # Its program is not installed here.
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    if shutil.which("systemd-analyze"):
        result = subprocess.run(
            ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (result.returncode, result.stderr) == (0, "")
    assert len(re.findall(r"^[A-Z]\w+=", text, re.MULTILINE)) > 30


def test_no_line_of_the_unit_is_lost(unit: configparser.ConfigParser) -> None:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    assert sum(len(unit[section]) for section in unit.sections()) == len(lines)
