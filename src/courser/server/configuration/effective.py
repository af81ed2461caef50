"""The effective configuration as TOML that can be loaded again, with secrets masked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from courser.api.operating_replies import Setting
from courser.configuration.key import AnyKey, KeyStatus
from courser.configuration.loading import FROM_DEFAULT, Configuration


@dataclass(frozen=True, slots=True)
class ConfigurationLine:
    """One key and its value."""

    table: str
    name: str
    text: str
    """The value as TOML; empty if the key is not set and has no default."""
    source: str


def effective_lines(configuration: Configuration) -> Iterator[ConfigurationLine]:
    """Every key that takes effect."""
    for key in configuration.index.keys:
        if key.status is KeyStatus.LIVE:
            yield _line(configuration, key)


def _line(configuration: Configuration, key: AnyKey) -> ConfigurationLine:
    table, _, name = key.path.rpartition(".")
    return ConfigurationLine(table, name, key.show(configuration[key]), configuration.source(key))


def list_settings(configuration: Configuration) -> list[Setting]:
    """Every key that takes effect, for clients."""
    return [
        Setting(
            key.path,
            key.show(configuration[key]),
            configuration.source(key),
            key.show(key.default),
            key.description,
        )
        for key in configuration.index.keys
        if key.status is KeyStatus.LIVE
    ]


def to_toml(
    configuration: Configuration, *, addresses: Mapping[str, str] | None = None, with_sources: bool = False
) -> str:
    """The whole configuration. ``addresses`` are those on which a server actually listens, by table."""
    tables: dict[str, list[ConfigurationLine]] = {}
    for line in effective_lines(configuration):
        tables.setdefault(line.table, []).append(line)
    parts = []
    for table, lines in tables.items():
        rows = [f"[{table}]"]
        for line in lines:
            text = line.text
            if addresses is not None and line.name == "address" and line.table in addresses:
                text = f'"{addresses[line.table]}"'
            rows.append(_row(line, text, with_sources=with_sources))
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(line: ConfigurationLine, text: str, *, with_sources: bool) -> str:
    if not text:
        return f"# {line.name} is not set"
    # A path may contain line ends, and the comment must stay on one line.
    source = line.source if line.source.isprintable() else repr(line.source)
    comment = f"  # {source}" if with_sources and line.source != FROM_DEFAULT else ""
    return f"{line.name} = {text}{comment}"
