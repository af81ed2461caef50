"""The registry of figures: what is counted, what it is called, and that labels cannot grow without end."""

import math

import pytest

from courser.model.metrics import OTHER, Histogram, MetricKind, Registry, Sample


def test_a_counter_is_read_when_somebody_collects() -> None:
    registry = Registry()
    counter = registry.counter("courser_polls_total", "Polls.")
    counter.value += 2
    (family,) = registry.collect()
    assert (family.name, family.kind, family.help) == ("courser_polls_total", MetricKind.COUNTER, "Polls.")
    assert family.samples == (Sample((), 2),)


def test_a_gauge_is_asked_for_its_value() -> None:
    registry, open_files = Registry(), [1]
    registry.gauge("courser_open_files", "Open files.", lambda: len(open_files))
    open_files.append(2)
    assert registry.value("courser_open_files") == 2


def test_labels_tell_counters_apart() -> None:
    registry = Registry()
    counters = registry.counters("courser_connections_total", "Connections.", "transport")
    counters.of("tcp").value += 1
    counters.of("quic").value += 3
    assert counters.of("tcp") is counters.of("tcp")
    assert registry.value("courser_connections_total", transport="quic") == 3
    assert registry.value("courser_connections_total", transport="http") == 0


def test_labels_beyond_the_limit_are_counted_together() -> None:
    registry = Registry()
    counters = registry.counters("courser_logins_total", "Logins.", "user", count_max=2)
    for number in range(10):
        counters.of(f"user-{number}").value += 1
    (family,) = registry.collect()
    assert len(family.samples) == 3
    assert registry.value("courser_logins_total", user=OTHER) == 8


def test_a_histogram_counts_what_is_not_above_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 2.0):
        histogram.observe(value)
    assert list(histogram.cumulative()) == [(0.1, 2), (1.0, 3), (math.inf, 4)]
    assert histogram.total == pytest.approx(2.65)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("polls_total", MetricKind.COUNTER),
        ("courser_polls", MetricKind.COUNTER),
        ("courser_size_total", MetricKind.GAUGE),
        ("courser_Size", MetricKind.GAUGE),
    ],
)
def test_names_follow_the_conventions(name: str, kind: MetricKind) -> None:
    with pytest.raises(AssertionError):
        Registry().collected(name, kind, "A figure.", tuple)


def test_a_name_is_used_once() -> None:
    registry = Registry()
    registry.counter("courser_polls_total", "Polls.")
    with pytest.raises(AssertionError):
        registry.counter("courser_polls_total", "Polls.")
