"""How a server is deployed: the container image, the Compose file, the Helm chart and the systemd unit.

Every check runs with what is here. Those of the tools themselves need them: ``make check-deployment`` insists on all.
"""

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from courser import __version__
from courser.pipelines.definition_file import load_definition
from courser.spark.releases import SUPPORTED
from tests.container import Stage, argument_of, instructions, last_stage
from tests.servers import RunningServer
from tests.wheels import ROOT, Environment, clean_variables, run


def tool(*command: str) -> list[str]:
    """The command, which has to be there: tests that call this are marked ``tools``."""
    assert shutil.which(command[0]), f"{command[0]} is not on the path; see make check-deployment"
    return list(command)


def parse_yaml(text: str) -> Any:
    return yaml.safe_load(text)


# --- the container ------------------------------------------------------------------------------------


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


@pytest.mark.tools
def test_hadolint_finds_nothing() -> None:
    run(*tool("hadolint"), "--no-color", ROOT / "Dockerfile")


def test_the_steps_install_a_server_that_needs_nothing_else(image: dict[str, Stage], tmp_path: Path) -> None:
    environment = image[""].environment
    assert run(environment.courser, "--version", cwd=tmp_path).stdout == f"courser {__version__}\n"
    run(sys.executable, "-m", "pip", "--python", environment.python, "check", cwd=tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may create users")
def test_the_steps_create_the_user(image: dict[str, Stage]) -> None:
    user, group = argument_of("USER").split(":")
    (volume,) = json.loads(argument_of("VOLUME"))
    root = image[""]
    assert f"courser:x:{user}:{group}::{volume}:/usr/sbin/nologin\n" in root.inside("/etc/passwd").read_text()
    owner = root.inside(volume).stat()
    assert (owner.st_uid, owner.st_gid) == (int(user), int(group))


def test_nothing_runs_as_root_and_the_data_is_in_a_volume() -> None:
    stage = last_stage()
    user, group = argument_of("USER").split(":")
    creation = next(argument for word, argument in stage if word == "RUN")
    assert int(user) > 0
    assert re.search(rf"groupadd --gid {group} courser .*useradd --uid {user} .*courser$", creation)
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


PORTS = {"TCP": 8090, "HTTP": 3000, "WEBSOCKET": 8092, "QUIC": 8080}
PORTS_BY_NAME = {"courser": 8090, "http": 3000, "websocket": 8092, "quic": 8080}


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Stands in for the volume of the image."""
    return tmp_path / "volume"


@pytest.fixture
def image_variables(volume: Path) -> dict[str, str]:
    """Those of the image, with a place and a port that are free here."""
    variables = variables_of_the_image()
    (mounted,) = json.loads(argument_of("VOLUME"))
    for transport, port in PORTS.items():
        assert variables[f"COURSER_{transport}_ADDRESS"] == f"0.0.0.0:{port}", "the container listens on all interfaces"
    variables["COURSER_SYSTEM_PATH"] = variables["COURSER_SYSTEM_PATH"].replace(mounted, str(volume))
    return {
        **clean_variables(),
        **variables,
        "COURSER_TCP_ADDRESS": "127.0.0.1:0",
        "COURSER_HTTP_ENABLED": "false",
        "COURSER_WEBSOCKET_ENABLED": "false",
    }


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
    address = f"127.0.0.1:{PORTS['TCP']}"
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
    # It takes connections before it says so.
    assert contained.stop() == 0
    assert "listening" in contained.output
    assert not (contained.data / "logs" / "courser.log").exists()


# --- Compose ------------------------------------------------------------------------------------------

COMPOSE = ROOT / "packaging" / "compose.yaml"


def check_compose(found: Any) -> None:
    """What the file must say, in its own form and as Compose reads it."""
    service = found["services"]["courser"]
    assert "courser-data" in found["volumes"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    # Longer than the server takes for its own grace, which is 10 s, and for syncing.
    assert service["stop_grace_period"] in ("90s", "1m30s")


def test_compose_has_a_named_volume_where_the_image_keeps_its_data() -> None:
    found = parse_yaml(COMPOSE.read_text())
    check_compose(found)
    service = found["services"]["courser"]
    (volume,) = json.loads(argument_of("VOLUME"))
    assert service["volumes"] == [f"courser-data:{volume}"]
    exposed = argument_of("EXPOSE").split()
    assert exposed == [f"{port}/udp" if transport == "QUIC" else str(port) for transport, port in PORTS.items()]
    assert service["ports"] == [f"127.0.0.1:{port.removesuffix('/udp')}:{port}" for port in exposed]
    assert service["environment"]["COURSER_ROOT_PASSWORD"].startswith("${COURSER_ROOT_PASSWORD:?")


@pytest.mark.tools
def test_the_file_is_valid_by_the_specification_of_compose() -> None:
    run(*tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec"), COMPOSE)


@pytest.mark.tools
def test_compose_reads_the_file_and_asks_for_a_password() -> None:
    command = compose("--file", str(COMPOSE), "config", "--format", "json")
    shown = run(*command, variables={"COURSER_ROOT_PASSWORD": "a secret of the test"}).stdout
    check_compose(json.loads(shown))
    assert json.loads(shown)["services"]["courser"]["environment"] == {"COURSER_ROOT_PASSWORD": "a secret of the test"}
    refused = subprocess.run(command, env=clean_variables(), capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "set the password of the root user" in refused.stderr


def compose(*arguments: str) -> list[str]:
    """Compose is a plugin of docker, or a program of its own."""
    plugin = ["docker", "compose", "version"]
    if shutil.which("docker") and subprocess.run(plugin, capture_output=True, check=False).returncode == 0:
        return ["docker", "compose", *arguments]
    return tool("docker-compose", *arguments)


# --- Helm ---------------------------------------------------------------------------------------------

CHART = ROOT / "packaging" / "helm" / "courser"
KUBERNETES = "1.30.0"
VARIANTS = {
    "usual": ("--set", "rootPassword=a-secret"),
    "full": (
        *("--set", "existingSecret=passwords", "--set", "tlsSecret=certificate", "--set", "image.tag=latest"),
        *("--set", "settings.COURSER_SYSTEM_TOPIC_MESSAGE_EXPIRY=7 days", "--set", "persistence.storageClass=fast"),
        *("--set", "service.type=LoadBalancer", "--set", "nodeSelector.disk=ssd", "--set", "podAnnotations.a=b"),
    ),
}


def render(variant: str) -> str:
    """The manifests of the chart, as Helm makes them."""
    command = tool("helm", "template", "shop", str(CHART), "--kube-version", KUBERNETES, *VARIANTS[variant])
    return run(*command).stdout


def manifests(variant: str) -> dict[str, Any]:
    """By their kind."""
    return {found["kind"]: found for found in yaml.safe_load_all(render(variant))}


def test_the_chart_has_the_version_of_the_server() -> None:
    chart = parse_yaml((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_every_value_is_described_and_used() -> None:
    values = parse_yaml((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert values.keys() == schema["properties"].keys() - {"global"}
    templates = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
    assert values.keys() == set(re.findall(r"\.Values\.(\w+)", templates))


@pytest.mark.tools
@pytest.mark.parametrize("variant", VARIANTS)
def test_helm_finds_nothing(variant: str) -> None:
    run(*tool("helm", "lint", "--strict", str(CHART), "--kube-version", KUBERNETES, *VARIANTS[variant]))


@pytest.mark.tools
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_manifests_are_valid_in_kubernetes(variant: str, tmp_path: Path) -> None:
    (tmp_path / "manifests.yaml").write_text(render(variant))
    run(*tool("kubernetes-validate", "--strict"), tmp_path / "manifests.yaml")


@pytest.mark.tools
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [((), "set rootPassword"), (("--set", "rootPassword=x", "--set", "persistence.size=ten"), "/persistence/size")],
)
def test_the_chart_says_what_is_wrong_with_values(arguments: tuple[str, ...], problem: str) -> None:
    command = tool("helm", "template", "shop", str(CHART), "--kube-version", KUBERNETES, *arguments)
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert problem in refused.stderr


@pytest.mark.tools
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_pod_runs_the_image_as_it_is_meant(variant: str) -> None:
    pod = manifests(variant)["StatefulSet"]["spec"]["template"]["spec"]
    user, group = map(int, argument_of("USER").split(":"))
    context = pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (user, group, group)
    (container,) = pod["containers"]
    (volume,) = json.loads(argument_of("VOLUME"))
    assert {"name": "data", "mountPath": volume} in container["volumeMounts"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == PORTS_BY_NAME
    service = manifests(variant)["Service"]["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in service} == PORTS_BY_NAME
    for ports in (container["ports"], service):
        assert [port["name"] for port in ports if port.get("protocol") == "UDP"] == ["quic"]
    if variant == "usual":
        assert container["readinessProbe"]["exec"]["command"] == health_check()


@pytest.mark.tools
def test_the_server_knows_every_variable_of_the_pod(installed: Environment, tmp_path: Path) -> None:
    (container,) = manifests("full")["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    variables = {found["name"]: found.get("value", "a secret") for found in container["env"]}
    shown = run(installed.courser, "config", "show", variables=variables, cwd=tmp_path)
    assert not shown.stderr
    settings = tomllib.loads(shown.stdout)
    encrypted = (settings["tcp"]["tls"], settings["http"]["tls"], settings["websocket"]["tls"])
    for table in (*encrypted, settings["quic"]["certificate"]):
        assert table["cert_file"] == "/etc/courser/tls/tls.crt"
    assert all(table["enabled"] for table in encrypted)
    assert settings["system"]["topic"]["message_expiry"] == "7d"


# --- a pipeline on Kubernetes -------------------------------------------------------------------------

SPARK_ON_KUBERNETES = ROOT / "packaging" / "kubernetes"


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    """The manifests of a pipeline by their kind."""
    return {found["kind"]: found for found in yaml.safe_load_all((SPARK_ON_KUBERNETES / "pipeline.yaml").read_text())}


@pytest.mark.tools
def test_the_manifests_of_a_pipeline_are_valid_in_kubernetes(parts: dict[str, Any], tmp_path: Path) -> None:
    template = tmp_path / "executor.yaml"
    pod = parse_yaml(parts["ConfigMap"]["data"]["executor.yaml"])
    # Spark completes it.
    pod["metadata"] = {"name": "executor"}
    template.write_text(yaml.safe_dump(pod))
    run(*tool("kubernetes-validate", "--strict"), SPARK_ON_KUBERNETES / "pipeline.yaml", template)


@pytest.mark.tools
def test_hadolint_finds_nothing_in_the_image_of_spark() -> None:
    run(*tool("hadolint"), "--no-color", SPARK_ON_KUBERNETES / "Dockerfile")


def test_the_image_of_spark_is_made_of_what_a_build_gets() -> None:
    text = (SPARK_ON_KUBERNETES / "Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in text.splitlines() if re.match(r"COPY (?!--from)", line)]
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    assert all(f"!{name}" in patterns for names in copied for name in names)
    release = re.search(r"^ARG SPARK=(\d+)\.(\d+)\.\d+$", text, re.MULTILINE)
    assert release
    assert release.groups() == tuple(SUPPORTED.split(" to ")[1].split("."))


def test_the_driver_runs_a_pipeline_whose_executors_find_it(parts: dict[str, Any], tmp_path: Path) -> None:
    """Names, ports and folders occur in several manifests, and in settings of Spark."""
    files, driver = parts["ConfigMap"]["data"], parts["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = driver["containers"]
    program, *words = container["command"]
    assert (program, words[:2]) == ("courser", ["pipeline", "run"])
    path = tmp_path / Path(words[2]).name
    path.write_text(files[path.name])
    pipeline = load_definition(path)
    name = parts["StatefulSet"]["metadata"]["name"]
    service = parts["Service"]
    assert parts["StatefulSet"]["spec"]["serviceName"] == service["metadata"]["name"]
    settings = pipeline.spark
    assert settings["spark.kubernetes.driver.pod.name"] == f"{name}-0"
    assert settings["spark.driver.host"].startswith(f"{name}-0.{service['metadata']['name']}.")
    ports = {str(port["port"]) for port in service["spec"]["ports"]}
    assert {settings["spark.driver.port"], settings["spark.driver.blockManager.port"]} == ports
    assert settings["spark.kubernetes.container.image"] == container["image"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert settings["spark.kubernetes.executor.podTemplateFile"] == f"{mounted['files']}/executor.yaml"
    executor = parse_yaml(files["executor.yaml"])["spec"]
    # What the driver plans in the shared folder, executors write there under the same path and as the same user.
    assert executor["volumes"][0] == next(one for one in driver["volumes"] if one["name"] == "data")
    assert executor["containers"][0]["volumeMounts"] == [{"name": "data", "mountPath": mounted["data"]}]
    assert executor["securityContext"] == driver["securityContext"]
    assert str(pipeline.checkpoint).startswith(f"{mounted['data']}/")
    assert parts["RoleBinding"]["roleRef"]["name"] == parts["Role"]["metadata"]["name"]
    accounts = {subject["name"] for subject in parts["RoleBinding"]["subjects"]}
    assert accounts == {driver["serviceAccountName"]} == {parts["ServiceAccount"]["metadata"]["name"]}


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


@pytest.mark.tools
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    # Its program is not installed here.
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE))
    result = run(*tool("systemd-analyze", "verify"), copy)
    assert not result.stderr
    # 0 is no exposure, 100 is that of a service without any restriction.
    run(*tool("systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager"), copy)


SWITCH, WORD, NUMBER, PATH = r"yes|no", r"[\w.-]+", r"\d+", r"-?/\S+"
SETTINGS = {
    "Unit": {"Description": r".+", "After": rf"{WORD}( {WORD})*", "Wants": WORD},
    "Service": {
        **dict.fromkeys(("User", "Group", "StateDirectory"), WORD),
        **dict.fromkeys(("EnvironmentFile", "WorkingDirectory"), PATH),
        **dict.fromkeys(("RestartSec", "RestartPreventExitStatus", "TimeoutStopSec", "LimitNOFILE"), NUMBER),
        **dict.fromkeys(("StateDirectoryMode", "UMask"), r"0[0-7]{3}"),
        **dict.fromkeys(("CapabilityBoundingSet", "AmbientCapabilities"), r""),
        **dict.fromkeys(("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectClock"), SWITCH),
        **dict.fromkeys(("ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules"), SWITCH),
        **dict.fromkeys(("ProtectKernelTunables", "ProtectControlGroups", "RestrictNamespaces"), SWITCH),
        **dict.fromkeys(("RestrictRealtime", "RestrictSUIDSGID", "RemoveIPC", "LockPersonality"), SWITCH),
        "Type": "exec",
        "ExecStart": r"/\S+( \S+)*",
        "Environment": r"[A-Z_]+=\S+",
        "Restart": "on-failure",
        "KillMode": "mixed",
        "ProtectSystem": "strict",
        "ProtectProc": "invisible",
        "RestrictAddressFamilies": r"AF_\w+( AF_\w+)*",
        "SystemCallArchitectures": "native",
        "SystemCallFilter": r"@[\w-]+",
        "SystemCallErrorNumber": r"E[A-Z]+",
    },
    "Install": {"WantedBy": WORD},
}
"""What systemd knows, of what the unit has: finds a mistyped name or value where systemd is not installed."""


def test_every_setting_of_the_unit_is_known(unit: configparser.ConfigParser) -> None:
    assert unit.sections() == list(SETTINGS)
    for section, known in SETTINGS.items():
        wrong = {name: value for name, value in unit[section].items() if not re.fullmatch(known.get(name, "!"), value)}
        assert not wrong


def test_no_line_of_the_unit_is_lost(unit: configparser.ConfigParser) -> None:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    assert sum(len(unit[section]) for section in unit.sections()) == len(lines)


# --- the nightly run ----------------------------------------------------------------------------------


def test_the_nightly_workflow_has_a_job_for_each_part_of_make_nightly() -> None:
    workflow = parse_yaml((ROOT / ".github/workflows/nightly.yml").read_text())
    parts = re.search(r"^NIGHTLY := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert parts
    assert workflow["jobs"]["part"]["strategy"]["matrix"]["part"] == parts[1].split()
