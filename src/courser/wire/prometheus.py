"""Metrics in the text format of Prometheus, version 0.0.4: written by the server, read by the command line."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from courser.model.metrics import Family, Labels, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STEP_COUNT = 100
"""Samples that are written without a pause."""

_LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_PAIR = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = {"\\": "\\\\", "\n": "\\n", '"': '\\"'}
_UNESCAPED = {escaped: text for text, escaped in _ESCAPED.items()}


def encode_families(families: Iterable[Family]) -> Iterator[str]:
    """All metrics, in pieces of at most ``STEP_COUNT`` samples: other work may run between two of them."""
    for family in families:
        metric = family.metric
        yield f"# HELP {metric.name} {_escaped(metric.help)}\n# TYPE {metric.name} {metric.kind.value}\n"
        while some := tuple(islice(family.samples, STEP_COUNT)):
            yield "".join([line for sample in some for line in _lines(metric.name, sample)])


def _lines(name: str, sample: Sample) -> Iterator[str]:
    value, labels = sample.value, _pairs(sample.labels)
    if isinstance(value, int | float):
        yield f"{name}{_in_braces(labels)} {_number(value)}\n"
        return
    before = f"{labels}," if labels else ""
    for bound, count in value.cumulative():
        yield f'{name}_bucket{{{before}le="{_number(bound)}"}} {count}\n'
    yield f"{name}_sum{_in_braces(labels)} {_number(value.sum)}\n"
    yield f"{name}_count{_in_braces(labels)} {value.count}\n"


def _in_braces(pairs: str) -> str:
    return f"{{{pairs}}}" if pairs else ""


def _pairs(labels: Labels) -> str:
    return ",".join([f'{name}="{_quotable(value)}"' for name, value in labels])


def _quotable(value: str) -> str:
    return _escaped(value).replace('"', _ESCAPED['"'])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(value)


# --- reading ---


@dataclass(frozen=True, slots=True)
class Series:
    """The value of one time series, as it was read. Of a histogram, each bucket is one, and so are sum and count."""

    name: str
    labels: Labels
    value: float

    def label(self, name: str) -> str:
        """The value of a label; empty if there is no such label."""
        return dict(self.labels).get(name, "")


def decode_series(text: str) -> Iterator[Series]:
    """The time series in a text that a server wrote. Raises ``ValueError`` for anything else."""
    # Not ``splitlines``: names may contain other characters that it takes for the end of a line.
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"not a line of the Prometheus text format: {line[:80]!r}")
            pairs = _PAIR.findall(match["labels"] or "")
            yield Series(
                match["name"], tuple((name, _unescaped(value)) for name, value in pairs), float(match["value"])
            )


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _UNESCAPED.get(found[0], found[0]), text)
