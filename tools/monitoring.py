"""What describes the metrics to others, from their table: a dashboard for Grafana, documentation."""

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

from courser.model import metric_table as m
from courser.model.metrics import Metric, MetricKind

Json: TypeAlias = dict[str, Any]
_DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SELECTED = '{job=~"$job", instance=~"$instance"}'
_INTERVAL = "$__rate_interval"
_COLUMNS = 24
"""Units in which Grafana measures the width of a page."""
_PANEL_WIDTH, _PANEL_HEIGHT = 8, 8
_STAT_WIDTH, _STAT_HEIGHT = 4, 4


# --- the dashboard ---


def dashboard() -> Json:
    """The dashboard, as Grafana imports it."""
    panels = list(_panels())
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "uid": "courser",
        "title": "Courser",
        "tags": ["courser"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source_variable(), _variable("job"), _variable("instance")]},
        "panels": panels,
    }


def _panels() -> Iterator[Json]:
    for number, (title, expression, unit) in enumerate(_summary()):
        place = {"x": number * _STAT_WIDTH, "y": 0, "w": _STAT_WIDTH, "h": _STAT_HEIGHT}
        yield _panel("stat", title, place, unit, [(expression, "")])
    top = _STAT_HEIGHT
    for section in m.SECTIONS:
        yield {"type": "row", "title": section.title, "collapsed": False, "panels": [], "gridPos": _row_place(top)}
        top += 1
        for number, metric in enumerate(section.metrics):
            line, column = divmod(number * _PANEL_WIDTH, _COLUMNS)
            place = {"x": column, "y": top + line * _PANEL_HEIGHT, "w": _PANEL_WIDTH, "h": _PANEL_HEIGHT}
            yield _panel("timeseries", title_of(metric), place, _unit(metric), list(_targets(metric)), metric.help)
        top += _PANEL_HEIGHT * -(-len(section.metrics) * _PANEL_WIDTH // _COLUMNS)


def _row_place(top: int) -> Json:
    return {"x": 0, "y": top, "w": _COLUMNS, "h": 1}


def _summary() -> tuple[tuple[str, str, str], ...]:
    """What an operator looks at first: title, expression, unit."""
    return (
        ("Messages in", f"sum({_rate(m.APPENDED_MESSAGES)})", "cps"),
        ("Messages out", f"sum({_rate(m.POLLED_MESSAGES)})", "cps"),
        ("Largest lag", f"max({_selected(m.GROUP_LAG)})", "short"),
        ("Disk used", f"max({_selected(m.DISK_USED)} / {_selected(m.DISK_SIZE)})", "percentunit"),
        ("Read-only partitions", f"sum({_selected(m.READ_ONLY)})", "short"),
        ("Failed requests", f"sum({_rate(m.FAILED_REQUESTS)})", "cps"),
    )


def _targets(metric: Metric) -> Iterator[tuple[str, str]]:
    """Expressions with their legends. Partitions are added up: a panel has room for a few lines."""
    labels = [name for name in metric.labels if name != "partition"]
    grouping = ", ".join(["instance", *labels])
    legend = " ".join(f"{{{{{name}}}}}" for name in labels or ["instance"])
    match metric.kind:
        case MetricKind.COUNTER:
            yield f"sum by ({grouping}) ({_rate(metric)})", legend
        case MetricKind.GAUGE:
            operation = "max" if metric.name.endswith("_seconds") else "sum"
            yield f"{operation} by ({grouping}) ({_selected(metric)})", legend
        case MetricKind.HISTOGRAM:
            rate = f"rate({metric.name}_bucket{_SELECTED}[{_INTERVAL}])"
            for quantile in (0.5, 0.99):
                by_bucket = ", ".join(["le", *labels])
                yield f"histogram_quantile({quantile}, sum by ({by_bucket}) ({rate}))", f"{legend} p{quantile * 100:g}"


def _selected(metric: Metric) -> str:
    return f"{metric.name}{_SELECTED}"


def _rate(metric: Metric) -> str:
    return f"rate({_selected(metric)}[{_INTERVAL}])"


def title_of(metric: Metric) -> str:
    """The name in words, without prefix and suffix."""
    words = metric.name.removeprefix("courser_").removesuffix("_total").removesuffix("_seconds").removesuffix("_bytes")
    text = words.replace("_", " ")
    is_size = metric.name.removesuffix("_total").endswith("_bytes")
    return text[0].upper() + text[1:] + (" (bytes)" if is_size else "")


def _unit(metric: Metric) -> str:
    """As Grafana calls it."""
    is_counter = metric.kind is MetricKind.COUNTER
    name = metric.name.removesuffix("_total")
    if name.endswith("_bytes"):
        return "Bps" if is_counter else "bytes"
    if metric is m.START_TIME:
        return "dateTimeAsIso"
    if name.endswith("_seconds"):
        return "percentunit" if is_counter else "s"
    return "cps" if is_counter else "short"


def _panel(
    kind: str, title: str, place: Json, unit: str, targets: list[tuple[str, str]], description: str = ""
) -> Json:
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": _DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _DATA_SOURCE, "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(targets)
        ],
    }


def _data_source_variable() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(label: str) -> Json:
    return {
        "name": label,
        "type": "query",
        "datasource": _DATA_SOURCE,
        "query": f"label_values({m.INFORMATION.name}, {label})",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


# --- documentation ---


def tables() -> str:
    """All metrics in Markdown."""
    return "\n".join("".join(_table(section)) for section in m.SECTIONS)


def _table(section: m.MetricSection) -> Iterator[str]:
    yield f"### {section.title}\n\n| metric | kind | labels | |\n| --- | --- | --- | --- |\n"
    for metric in section.metrics:
        labels = ", ".join(f"`{name}`" for name in metric.labels)
        yield f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |\n"


def dashboard_text() -> str:
    """The file with the dashboard."""
    return json.dumps(dashboard(), indent=2) + "\n"
