"""docs/formats/private-commands.md: its layouts come from the commands."""

import pytest

from courser.api.commands import COMMANDS
from tools.command_layouts import with_layouts


def test_a_command_without_a_section_gets_one() -> None:
    text = with_layouts("# Commands\n")
    for row in COMMANDS:
        assert (f"## {row.code} {row.kind.__name__}\n" in text) == row.is_private
    assert "| `keep` | `u64` |" in text


def test_a_section_without_a_command_is_an_error() -> None:
    with pytest.raises(ValueError, match="69999"):
        with_layouts("## 69999 Nothing\n")
