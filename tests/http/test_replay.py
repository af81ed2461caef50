"""The recorded HTTP exchanges of the real servers against Courser.

The same status, content type and JSON come back, but for what ``docs/differences.md`` lists with its reason.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.http.replaying import RELEASES, Difference, Player, recording
from tests.http.serving import serving

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "differences.md"
HEADINGS = ["server", "exchanges", "field", "original", "Courser", "why"]
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """A deliberate difference, as the document lists it."""

    releases: tuple[str, ...]
    patterns: tuple[str, ...]
    fields: tuple[str, ...]
    original: tuple[str, ...]
    """Values; empty: any."""
    courser: tuple[str, ...]

    def uses(self, release: str, difference: Difference) -> set[str]:
        """The patterns and fields that excuse a difference; none if the row does not."""
        patterns = {pattern for pattern in self.patterns if _is_match(pattern, difference.exchange)}
        is_excused = (
            patterns
            and release in self.releases
            and difference.field in self.fields
            and (not self.original or difference.recorded in self.original)
            and (not self.courser or difference.ours in self.courser)
        )
        return patterns | {difference.field, release} if is_excused else set()


def _is_match(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def listed() -> list[Row]:
    """The rows of the document."""
    rows: list[Row] = []
    is_inside = False
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells == HEADINGS:
            is_inside = True
        elif not line.startswith("|"):
            is_inside = False
        elif is_inside and not set(line) <= set("|-: "):
            assert cells[-1], f"a row without a reason: {line}"
            rows.append(Row(*(tuple(_CODE.findall(cell)) for cell in cells[:-1])))
    return rows


async def found(release: str, directory: Path) -> list[Difference]:
    """All differences from the recording of a server."""
    async with serving(directory) as server:
        player = Player(server)
        return [difference for row in recording(release) for difference in await player.differences(row)]


def judge(rows: Iterable[Row], release: str, differences: Iterable[Difference]) -> tuple[list[str], list[str]]:
    """What differs without being listed, and what is listed without being needed."""
    rows = list(rows)
    used: list[set[str]] = [set() for _ in rows]
    unlisted = []
    for difference in differences:
        uses = [row.uses(release, difference) for row in rows]
        if not any(uses):
            unlisted.append(str(difference))
        for known, more in zip(used, uses, strict=True):
            known |= more
    idle = [
        f"{row.patterns}: `{part}`"
        for row, known in zip(rows, used, strict=True)
        if release in row.releases
        for part in (release, *row.patterns, *row.fields)
        if part not in known and (part == release or len(row.releases) == 1)
    ]
    return unlisted, idle


@pytest.mark.parametrize("release", RELEASES)
async def test_nothing_differs_but_what_is_listed(release: str, tmp_path: Path) -> None:
    differences = await found(release, tmp_path / "data")
    unlisted, idle = judge(listed(), release, differences)
    assert not unlisted, "\n".join(unlisted)
    assert not idle, "\n".join(idle)


def test_a_difference_that_is_not_listed_is_noticed() -> None:
    row = Row(("0.8",), ("poll *",), ("status",), ("200",), ("404",))
    differences = [Difference("poll next", "status", "200", "500"), Difference("poll first", "status", "200", "404")]
    assert judge([row], "0.8", differences) == (["poll next: status: 200 -> 500"], [])


def test_a_row_that_is_not_needed_is_noticed() -> None:
    row = Row(("0.8",), ("poll *", "send"), ("status",), ("200",), ("404",))
    unlisted, idle = judge([row], "0.8", [Difference("poll first", "status", "200", "404")])
    assert (unlisted, idle) == ([], ["('poll *', 'send'): `send`"])
