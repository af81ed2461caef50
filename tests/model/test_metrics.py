"""The registry of figures: what is counted, what it is called, and that labels cannot grow without end."""

import math

import pytest

from courser.model.metric_table import SECTIONS
from courser.model.metrics import OTHER, Histogram, Metric, MetricKind, PowerHistogram, Registry, Sample

POLLS = Metric("courser_polls_total", MetricKind.COUNTER, "Polls.")
LOGINS = Metric("courser_logins_total", MetricKind.COUNTER, "Logins.", ("user",))


def test_a_counter_is_read_when_somebody_collects() -> None:
    registry = Registry()
    counter = registry.counter(POLLS)
    counter.value += 2
    (family,) = registry.collect()
    assert family.metric is POLLS
    assert list(family.samples) == [Sample((), 2)]


def test_a_value_that_is_kept_elsewhere_is_asked_for() -> None:
    registry, open_files = Registry(), [1]
    metric = Metric("courser_open_files", MetricKind.GAUGE, "Open files.")
    registry.value_of(metric, lambda: len(open_files))
    open_files.append(2)
    assert registry.value(metric) == 2


def test_labels_tell_counters_apart() -> None:
    registry = Registry()
    counters = registry.counters(LOGINS)
    counters.of("alice").value += 1
    counters.of("bob").value += 3
    assert counters.of("alice") is counters.of("alice")
    assert registry.value(LOGINS, user="bob") == 3
    assert registry.value(LOGINS, user="carol") == 0


def test_labels_beyond_the_limit_are_counted_together() -> None:
    registry = Registry()
    counters = registry.counters(LOGINS, count_max=2)
    for number in range(10):
        counters.of(f"user-{number}").value += 1
    (family,) = registry.collect()
    assert len(list(family.samples)) == 3
    assert registry.value(LOGINS, user=OTHER) == 8


def test_a_histogram_counts_what_is_not_above_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 2.0):
        histogram.observe(value)
    assert list(histogram.cumulative()) == [(0.1, 2), (1.0, 3), (math.inf, 4)]
    assert histogram.sum == pytest.approx(2.65)


def test_a_histogram_of_powers_of_two() -> None:
    histogram = PowerHistogram(range(2, 4), 0.5)
    for number in (0, 3, 4, 7, 8, 2**40):
        histogram.observe(number)
    assert list(histogram.cumulative()) == [(2.0, 2), (4.0, 4), (math.inf, 6)]
    assert (histogram.count, histogram.sum) == (6, (22 + 2**40) / 2)


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
        Metric(name, kind, "A figure.")


def test_a_name_is_used_once() -> None:
    registry = Registry()
    registry.counter(POLLS)
    with pytest.raises(AssertionError):
        registry.counter(POLLS)


def test_every_metric_is_in_one_section_and_explained() -> None:
    metrics = [metric for section in SECTIONS for metric in section.metrics]
    assert len({metric.name for metric in metrics}) == len(metrics)
    assert all(metric.help.endswith(".") for metric in metrics)
