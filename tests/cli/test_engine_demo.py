"""``courser engine-demo`` keeps its promises, and leaves nothing behind."""

import json
from pathlib import Path

import pytest

from courser.cli.main import run


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_it_is_told(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engine-demo"]) == 0
    text = capsys.readouterr().out
    for word in ("written", "bounded", "synced", "killed", "the body hash does not match", "courser inspect"):
        assert word in text
    assert list(scratch.iterdir()) == []


def test_it_is_told_to_programs(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engine-demo", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["kind"] for row in rows] == ["level", "level", "level", "kill", "flip"]
    kill, flip = rows[3:]
    assert kill["acknowledged_count"] == kill["recovered_count"] >= 5_000
    total = kill["recovered_count"] + kill["unacknowledged_count"]
    assert flip["read_count"] + flip["end_offset"] - flip["first_offset"] == total
    assert list(scratch.iterdir()) == []
