"""What the README shows works as it stands there, with a kill -9 in between."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.environments import python_of
from tests.servers import RunningServer

README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.xdist_group("sdk-0.9.0")
def test_the_example_reads_what_it_sent_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (release,) = re.findall(r"pip install apache-iggy==([\d.]+)", README)
    server = RunningServer(tmp_path)
    with server:
        address = server.address
        (tmp_path / "hello.py").write_text(example.replace("127.0.0.1:8090", address))
        for offset in range(3):
            ran = subprocess.run(
                [python_of(release), "hello.py"], cwd=tmp_path, capture_output=True, text=True, check=True
            )
            assert ran.stdout == f"{offset} hello\n"
            server.kill()
            server.start()
    courser = Path(sys.executable).parent / "courser"
    commands = re.findall(r"^\.venv/bin/courser (.*?)(?:   .*)?$", README, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        line = f"{courser} {command}"
        subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, capture_output=True, check=True)


def test_every_target_that_it_names_is_in_the_makefile() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    targets = set(re.findall(r"`?make ([a-z-]+)", README))
    assert {"run", "test", "bench"} <= targets
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
