"""The tables of all keys and options as Markdown: of pipeline files and of the Spark data source."""

from courser.pipelines.definition_keys import KEYS, DefinitionKey
from courser.spark.options import OPTIONS, Option, Use


def pipeline_keys() -> str:
    """All keys of a pipeline file."""
    lines = ["| key | default | kind | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{key.path}` | {_default(key)} | {key.kind.name} | {key.help} |" for key in KEYS]
    lines.append(
        '| `spark."spark..."` | - | any | settings of the Spark session, such as `"spark.sql.shuffle.partitions" = 4` |'
    )
    return "\n".join(lines) + "\n"


def _default(key: DefinitionKey) -> str:
    if key.is_required:
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
