"""The list of deliberate differences: what a row excuses, what it does not, and when it is idle."""

import dataclasses

import pytest

from tests.replay.captures import Exchange, Wire, exchanges
from tests.replay.comparison import Difference
from tests.replay.deviations import Judgement, is_match, read_rows

TABLE = """
Words before.

| row | wire | exchanges | field | the original | Courser | why |
| --- | --- | --- | --- | --- | --- | --- |
| `dropped` | vsr | `frames/operation *`, `frames/command 1` | `outcome` | `none`: dropped | `status 3` | clients wait |
| `size` | classic | `disk/*` | `size`, `count` | 64 bytes a message | counts as 0.9 does, `count 9` | one figure |

| another | table |
| --- | --- |
| that | is not read |
"""


def exchange(wire: Wire, title: str) -> Exchange:
    section, _, name = title.partition("/")
    return dataclasses.replace(exchanges(wire)[0], section=section, name=name)


OPERATION = exchange(Wire.VSR, "frames/operation 4")
DROPPED = Difference("outcome", "none", "status 3")


def test_a_table_with_the_right_headings_is_read() -> None:
    dropped, size = read_rows(TABLE)
    assert dropped.name == "dropped"
    assert dropped.patterns == ("frames/operation *", "frames/command 1")
    assert (dropped.original, dropped.courser) == (("none",), ("status 3",))
    assert size.wires == {Wire.CLASSIC}
    assert size.fields == ("size", "count")


@pytest.mark.parametrize(
    "line",
    [
        "| `a` | vsr | `frames/x` | `outcome` | `none` | `ok` | |",
        "| `a` | vsr | all of them | `outcome` | `none` | `ok` | because |",
        "| `a` | vsr | `frames/x` | | `none` | `ok` | because |",
        "| `a` | vsr | `frames/x` | `outcome` | `none` | because |",
        "| `dropped` | vsr | `frames/x` | `outcome` | `none` | `ok` | because |",
    ],
    ids=["no reason", "no exchange", "no field", "a cell short", "a name twice"],
)
def test_a_row_that_says_too_little_is_refused(line: str) -> None:
    with pytest.raises(AssertionError):
        read_rows(TABLE.replace("| `dropped`", f"{line}\n| `dropped`", 1))


def test_only_the_star_is_special_in_a_pattern() -> None:
    assert is_match("groups/poll own partition [*]", "groups/poll own partition [0, 1]")
    assert not is_match("groups/poll own partition [0, 1]", "groups/poll own partition 0")
    assert not is_match("groups/sync", "groups/sync first member")


def test_a_difference_that_a_row_describes_is_excused() -> None:
    judgement = Judgement(read_rows(TABLE), [(OPERATION, DROPPED)])
    assert judgement.unexcused == []


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (OPERATION, Difference("outcome", "none", "status 4")),
        (OPERATION, Difference("outcome", "closed", "status 3")),
        (OPERATION, Difference("reply", "none", "status 3")),
        (exchange(Wire.VSR, "frames/code 0"), DROPPED),
        (exchange(Wire.VSR, "numbers/operation 4"), DROPPED),
        (exchange(Wire.CLASSIC, "frames/operation 4"), DROPPED),
        (exchange(Wire.CLASSIC, "disk/topic"), Difference("count", "10", "8")),
    ],
    ids=["another answer", "another original", "field", "name", "section", "wire", "value that the row states"],
)
def test_a_planted_difference_is_not_excused(other: Exchange, difference: Difference) -> None:
    judgement = Judgement(read_rows(TABLE), [(other, difference)])
    assert judgement.unexcused == [(other, difference)]
    assert str(difference) in judgement.report


def test_what_no_exchange_needs_is_idle() -> None:
    judgement = Judgement(read_rows(TABLE), [(OPERATION, DROPPED)])
    assert judgement.idle == [
        "dropped: `frames/command 1` is not needed",
        "size: `disk/*` is not needed",
        "size: `size` is not needed",
        "size: `count` is not needed",
    ]
