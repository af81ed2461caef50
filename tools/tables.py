"""The tables of all keys and options as Markdown: of pipeline files and of the Spark data source."""

from courser.configuration.key import AnyKey
from courser.pipelines.definition import BY_TABLE, REQUIRED
from courser.spark.options import OPTIONS, Option, Use


def pipeline_keys() -> str:
    """All keys of a pipeline file."""
    lines = ["| key | default | kind | meaning |", "| --- | --- | --- | --- |"]
    keys = [key for table in BY_TABLE.values() for key in table.values()]
    lines += [f"| `{key.path}` | {_default(key)} | {key.kind.name} | {key.description} |" for key in keys]
    lines.append(
        '| `spark."spark..."` | - | any | settings of the Spark session, such as `"spark.sql.shuffle.partitions" = 4` |'
    )
    return "\n".join(lines) + "\n"


def _default(key: AnyKey) -> str:
    if key in REQUIRED:
        return "required"
    return "-" if key.default in (None, ()) else f"`{key.kind.to_toml(key.default)}`"


def spark_options() -> str:
    """All options of the Spark data source, with their heading."""
    lines = ["## Options", "", "| option | for | default | takes | |", "| --- | --- | --- | --- | --- |"]
    lines += [_row(option) for option in OPTIONS]
    return "\n".join(lines) + "\n"


def _row(option: Option) -> str:
    uses = "all" if option.uses == frozenset(Use) else ", ".join(sorted(use.value for use in option.uses))
    default = "" if option.default is None else f"`{option.default}`"
    return f"| `{option.name}` | {uses} | {default} | {option.kind.name} | {option.help} |"
