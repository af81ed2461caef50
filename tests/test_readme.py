"""What else the README shows works as it stands there; ``test_five_minutes`` runs its script."""

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT, blocks_of, courser_lines, text_of
from tests.servers import RunningServer
from tests.wheels import clean_variables

README = text_of("README.md")
SCREEN_LINES = 45
_COURSER = str(Path(sys.executable).parent / "courser")


def test_it_begins_with_the_two_commands_that_set_everything_up() -> None:
    first = blocks_of("README.md")[0]
    assert [line.partition("#")[0].strip() for line in first.text.splitlines()] == ["make run", "make test"]


def test_the_first_table_comes_within_one_and_a_half_screens() -> None:
    lines = README.splitlines()
    table = next(number for number, line in enumerate(lines) if line.startswith("|"))
    assert table <= SCREEN_LINES * 3 // 2
    assert not any("![" in line for line in lines[:table]), "a picture fills a screen"


def test_its_benchmark_needs_no_server(tmp_path: Path) -> None:
    (line,) = (line for _, line in courser_lines("README.md") if line.startswith("courser bench "))
    command = re.sub(r"--seconds \d+", "--seconds 0.2", line.replace("courser", _COURSER, 1)).split()
    environment = clean_variables() | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_nothing_that_needs_a_server_follows_the_script_that_stops_it() -> None:
    after = README.partition("kill $!\n```\n")[2].partition("\n## ")[0]
    assert after
    assert re.findall(r"`courser (?!dev|serve)[^`]*`", after) == []


def test_its_commands_look_into_the_files_of_a_server(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        url = f"iggy://iggy:iggy@{server.address}"
        command = [_COURSER, "send", "--url", url, "shop/orders", "--create", "hello"]
        subprocess.run(command, check=True, capture_output=True)
        lines = [line for _, line in courser_lines("README.md") if line.startswith("courser inspect ")]
        assert len(lines) >= 2
        for line in lines:
            command = ["/bin/sh", "-c", line.replace("courser", _COURSER, 1)]
            subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)


def test_every_target_that_it_names_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`?make ([a-z-]+)", README))
    assert {"run", "test", "bench"} <= targets
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
