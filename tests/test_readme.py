"""What else the README shows works as it stands there; ``test_five_minutes`` runs its script."""

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT, courser_lines, text_of
from tests.servers import RunningServer

README = text_of("README.md")


def test_its_commands_look_into_the_files_of_a_server(tmp_path: Path) -> None:
    courser = str(Path(sys.executable).parent / "courser")
    with RunningServer(tmp_path) as server:
        url = f"iggy://iggy:iggy@{server.address}"
        command = [courser, "send", "--url", url, "shop/orders", "--create", "hello"]
        subprocess.run(command, check=True, capture_output=True)
        lines = [line for _, line in courser_lines("README.md") if line.startswith("courser inspect ")]
        assert len(lines) >= 2
        for line in lines:
            command = ["/bin/sh", "-c", line.replace("courser", courser, 1)]
            subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)


def test_every_target_that_it_names_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`?make ([a-z-]+)", README))
    assert {"run", "test", "bench"} <= targets
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
