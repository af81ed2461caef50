"""The effective configuration: as a list, and as TOML that can be loaded again. Secrets are masked."""

from collections.abc import Mapping

from courser.api.operating_replies import Setting
from courser.configuration.environment import variable
from courser.configuration.key import KeyStatus
from courser.configuration.loading import FROM_DEFAULT, Configuration

_OFF = ("0", "false", "no", "off")


def is_logged_at_start(environment: Mapping[str, str]) -> bool:
    """Whether a start logs the configuration."""
    return (variable(environment, "DISPLAY_CONFIG") or "1").strip().lower() not in _OFF


def list_settings(configuration: Configuration) -> list[Setting]:
    """Every key that takes effect."""
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


def by_table(settings: list[Setting]) -> dict[str, dict[str, Setting]]:
    """The settings by table, and in it by name."""
    tables: dict[str, dict[str, Setting]] = {}
    for entry in settings:
        table, _, name = entry.key.rpartition(".")
        tables.setdefault(table, {})[name] = entry
    return tables


def to_toml(
    configuration: Configuration, *, addresses: Mapping[str, str] | None = None, with_sources: bool = False
) -> str:
    """The whole configuration. ``addresses`` are those on which a server actually listens, by table."""
    parts = []
    for table, entries in by_table(list_settings(configuration)).items():
        rows = [f"[{table}]"]
        for name, entry in entries.items():
            bound = (addresses or {}).get(table) if name == "address" else None
            text = entry.value if bound is None else f'"{bound}"'
            rows.append(_row(name, text, entry.source if with_sources else FROM_DEFAULT))
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(name: str, text: str, source: str) -> str:
    if not text:
        return f"# {name} is not set"
    # A path may contain line ends, and the comment must stay on one line.
    shown = source if source.isprintable() else repr(source)
    return f"{name} = {text}" + (f"  # {shown}" if source != FROM_DEFAULT else "")
