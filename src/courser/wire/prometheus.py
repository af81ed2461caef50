"""Metrics in the text format of Prometheus, version 0.0.4."""

from collections.abc import Iterable, Iterator

from courser.model.metrics import Family, Histogram, Labels, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def encode_family(family: Family) -> str:
    """One name with all its time series."""
    lines = [f"# HELP {family.name} {_escaped(family.help)}", f"# TYPE {family.name} {family.kind.value}"]
    lines += (line for sample in family.samples for line in _lines(family.name, sample))
    return "\n".join(lines) + "\n"


def _lines(name: str, sample: Sample) -> Iterator[str]:
    value = sample.value
    if not isinstance(value, Histogram):
        yield f"{name}{_labels(sample.labels)} {_number(value)}"
        return
    for bound, count in value.cumulative():
        yield f"{name}_bucket{_labels((*sample.labels, ('le', _number(bound))))} {count}"
    yield f"{name}_sum{_labels(sample.labels)} {_number(value.total)}"
    yield f"{name}_count{_labels(sample.labels)} {value.count}"


def _labels(labels: Labels) -> str:
    return "{" + ",".join(_pairs(labels)) + "}" if labels else ""


def _pairs(labels: Labels) -> Iterable[str]:
    return (f'{name}="{_escaped(value).replace(chr(34), chr(92) + chr(34))}"' for name, value in labels)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(value)
