"""The reference of options in the documentation is the table in the code."""

from courser.spark.options import OPTIONS
from courser.spark.reference import with_reference
from tests.servers import ROOT


def test_the_reference_is_current() -> None:
    document = (ROOT / "docs/spark/reading.md").read_text("utf-8")
    assert with_reference(document) == document, "run `python -m courser.spark.reference`"


def test_every_option_is_in_it() -> None:
    document = (ROOT / "docs/spark/reading.md").read_text("utf-8")
    assert all(f"| `{option.name}` |" in document for option in OPTIONS)
