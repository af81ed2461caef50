"""The pace of the archiver: rests while clients are busy."""

from threading import Event

import pytest

from courser.archive.errors import ArchiveInterrupted
from courser.archive.pacing import Pace, Times, WorkClock


class ManualTimes(Event, WorkClock):
    """All clocks, and the event that rests wait for: they pass when somebody works or waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.process_time = self.client_time = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()

    def work(self, seconds: float, own: float = 1.0, clients: float = 0.0) -> None:
        """Time passes, in which the archiver and clients use these shares of a core."""
        self.now += seconds
        self.process_time += (own + clients) * seconds
        self.client_time += clients * seconds

    def read(self) -> Times:
        return Times(self.now, self.process_time, self.client_time)

    def pace(self) -> Pace:
        return Pace(0, self, self)


def rest_after(times: ManualTimes, pace: Pace, seconds: float, own: float, clients: float) -> float:
    times.work(seconds, own, clients)
    before = times.now
    pace.give_way("v1/a")
    return times.now - before


@pytest.mark.parametrize(
    ("own", "clients", "rest"),
    [
        pytest.param(1.0, 0.0, 0.0, id="nobody else is there"),
        pytest.param(1.0, 0.1, 0.06, id="clients need little"),
        pytest.param(1.0, 0.5, 0.3, id="clients are busy"),
        pytest.param(1.0, 1.0, 0.3, id="clients need a core"),
        pytest.param(0.1, 1.0, 0.03, id="the store is slow, so this takes little from clients"),
    ],
)
def test_rests_depend_on_the_work_and_on_the_clients(own: float, clients: float, rest: float) -> None:
    times = ManualTimes()
    pace = times.pace()
    pace.is_patient = True
    assert rest_after(times, pace, 0.1, own, clients) == pytest.approx(rest)
    assert rest_after(times, pace, 0.1, own, clients) == pytest.approx(rest), "the rest itself is no work"


def test_nothing_rests_if_somebody_waits_for_the_archive() -> None:
    times = ManualTimes()
    pace = times.pace()
    assert rest_after(times, pace, 0.1, 1.0, 1.0) == 0.0
    pace.is_patient = True
    assert rest_after(times, pace, 0.1, 1.0, 1.0) > 0.0
    pace.is_patient = False
    assert rest_after(times, pace, 0.1, 1.0, 1.0) == 0.0


def test_short_pieces_are_added_up() -> None:
    times = ManualTimes()
    pace = times.pace()
    pace.is_patient = True
    rests = [rest_after(times, pace, 0.001, 1.0, 1.0) for _ in range(4)]
    assert rests == pytest.approx([0.0, 0.006, 0.0, 0.006])


def test_a_rest_ends() -> None:
    times = ManualTimes()
    pace = times.pace()
    pace.is_patient = True
    assert rest_after(times, pace, 60.0, 1.0, 1.0) == pytest.approx(0.5)


def test_a_server_that_stops_does_not_wait_for_the_next_piece() -> None:
    times = ManualTimes()
    pace = times.pace()
    times.set()
    with pytest.raises(ArchiveInterrupted):
        pace.give_way("v1/a")
