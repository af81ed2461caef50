"""When garbage is searched for: new objects soon, all of them when nobody needs the server."""

import gc
from collections.abc import Iterator

import pytest

from courser.server.garbage import Garbage, calm_collections
from tests.fakes.clocks import ManualClock

MINUTE = 60_000_000


class Calls:
    """Stands for the collector."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.survivor_count = 0
        patch.setattr(gc, "collect", lambda: self.names.append("collect"))
        patch.setattr(gc, "freeze", lambda: self.names.append("freeze"))
        patch.setattr(gc, "unfreeze", lambda: self.names.append("unfreeze"))
        patch.setattr(gc, "get_count", lambda: (0, 0, self.survivor_count))

    def taken(self) -> list[str]:
        names, self.names = self.names, []
        return names


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_new_objects_are_searched_once_and_kept(calls: Calls) -> None:
    garbage = Garbage(ManualClock(), lambda: True)
    garbage.look()
    assert calls.taken() == [], "nothing is new"
    calls.survivor_count = 1
    garbage.look()
    assert calls.taken() == ["collect", "freeze"]


def test_a_busy_server_waits_until_there_are_some(calls: Calls) -> None:
    garbage = Garbage(ManualClock(), lambda: False)
    calls.survivor_count = 1
    garbage.look()
    assert calls.taken() == []
    calls.survivor_count = 2
    garbage.look()
    assert calls.taken() == ["freeze"], "it must not stop to search"
    garbage.look()
    assert calls.taken() == [], "nothing has survived since"
    calls.survivor_count = 4
    garbage.look()
    assert calls.taken() == ["freeze"]


@pytest.mark.parametrize(("is_idle", "minutes"), [(True, 10), (False, 60)])
def test_all_objects_are_searched_now_and_then(calls: Calls, is_idle: bool, minutes: int) -> None:
    clock = ManualClock()
    garbage = Garbage(clock, lambda: is_idle)
    for _ in range(3):
        clock.advance(minutes * MINUTE - 1)
        garbage.look()
        assert calls.taken() == []
        clock.advance(1)
        garbage.look()
        assert calls.taken() == ["unfreeze", "collect", "freeze"]


@pytest.fixture
def usual_collections() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("usual_collections")
def test_cycles_among_permanent_objects_are_found_in_the_end() -> None:
    class Knot:
        def __init__(self) -> None:
            self.me = self

    def knot_count() -> int:
        gc.unfreeze()
        return sum(type(one) is Knot for one in gc.get_objects())

    clock = ManualClock()
    garbage = Garbage(clock, lambda: True)
    knots = [Knot() for _ in range(100)]
    calm_collections()
    assert gc.get_freeze_count() > 100
    del knots
    clock.advance(10 * MINUTE)
    garbage.look()
    assert knot_count() == 0
