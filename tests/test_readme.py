"""What the README shows works as it stands there, the second time too."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_example_runs_twice_and_its_data_is_sound(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    for offset in range(2):
        ran = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ran.stdout == f"1 message at offset {offset} b'hello'\n"
    courser = Path(sys.executable).parent / "courser"
    for command in re.findall(r"^\.venv/bin/courser (.*?)(?:   .*)?$", README, re.MULTILINE):
        subprocess.run([courser, *command.split()], cwd=tmp_path, capture_output=True, check=True)


def test_every_target_that_it_names_is_in_the_makefile() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    targets = set(re.findall(r"`?make ([a-z-]+)", README))
    assert {"run", "test", "bench"} <= targets
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
