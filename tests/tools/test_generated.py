"""Generated files are current. What people wrote in them stays."""

import shutil
from pathlib import Path

import pytest

from courser.spark.options import OPTIONS
from tools import __main__ as tools
from tools import generated, tables
from tools.documents import with_part


def test_all_files_are_current() -> None:
    files = generated.generated()
    assert generated.present(files) == files, "run: make reference"


def test_every_file_is_written_and_pages_without_a_subject_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generated.generated()
    for name in ("docs", "packaging", "src/courser/client", "src/courser/console"):
        shutil.copytree(generated.ROOT / name, tmp_path / name)
    for module in (generated, tools):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "docs/cli/gone.md").write_text("# courser gone\n")
    (tmp_path / "docs/cli/server.md").unlink()
    (tmp_path / "docs/metrics.md").write_text(f"# Metrics\n\n{generated.BEGIN}old words\n{generated.END}Words.\n")
    tools.main()
    metrics = (tmp_path / "docs/metrics.md").read_text()
    assert metrics.startswith("# Metrics\n\n")
    assert metrics.endswith(f"{generated.END}Words.\n")
    assert "old words" not in metrics
    assert generated.present(expected) == {**expected, "docs/metrics.md": metrics}


def test_every_option_of_spark_is_in_its_table() -> None:
    text = tables.spark_options()
    assert all(f"| `{option.name}` |" in text for option in OPTIONS)


@pytest.mark.parametrize("document", ["# Without marks\n", "# Without an end\nbegin\nold\n", "end\nbegin\n"])
def test_a_document_without_its_marks(document: str) -> None:
    with pytest.raises(ValueError, match="no line"):
        with_part(document, "begin\n", "new\n", "end\n")


def test_the_last_part_of_a_document() -> None:
    assert with_part("Words.\nbegin\nold\nold\n", "begin\n", "new\n") == "Words.\nbegin\n\nnew\n"
