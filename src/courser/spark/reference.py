"""The reference of all options as Markdown. ``python -m courser.spark.reference docs/spark/reading.md`` writes it."""

import sys
from pathlib import Path

from courser.spark.options import OPTIONS, Option, Use

MARK = "<!-- everything below is written by: python -m courser.spark.reference docs/spark/reading.md -->"


def options_markdown() -> str:
    """All options as a table."""
    lines = ["## Options", "", "| option | for | default | takes | |", "| --- | --- | --- | --- | --- |"]
    lines += [_row(option) for option in OPTIONS]
    return "\n".join(lines) + "\n"


def _row(option: Option) -> str:
    uses = "all" if option.uses == frozenset(Use) else ", ".join(sorted(use.value for use in option.uses))
    default = "" if option.default is None else f"`{option.default}`"
    return f"| `{option.name}` | {uses} | {default} | {option.kind.name} | {option.help} |"


def with_reference(document: str) -> str:
    """The document with the current reference after the mark. Raises ``ValueError`` if there is no mark."""
    head, mark, _ = document.partition(MARK)
    if not mark:
        raise ValueError(f"the document has no line {MARK}")
    return f"{head}{mark}\n\n{options_markdown()}"


if __name__ == "__main__":
    _document = Path(sys.argv[1])
    _document.write_text(with_reference(_document.read_text("utf-8")), "utf-8")
