"""``courser inspect`` in this process, and what it says as data."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from courser.cli.main import run

Run = Callable[..., tuple[int, str, str]]
"""Runs a command; gives its exit code and what it printed."""


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def document(courser: Run, *arguments: object) -> dict[str, Any]:
    code, out, _ = courser("inspect", *arguments, "-o", "json")
    assert code in (0, 2)
    parsed: dict[str, Any] = json.loads(out)
    lines = [json.loads(line) for line in courser("inspect", *arguments, "-o", "jsonl")[1].splitlines()]
    assert lines[1:-1] == parsed.get("rows", parsed.get("findings")), "the two JSON forms say the same"
    return parsed
