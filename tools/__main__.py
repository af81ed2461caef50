"""``python -m tools``: write all generated files again, and remove those whose subject is gone."""

from tools.generated import ROOT, generated, present


def main() -> None:
    """Write what is new; remove pages that nothing generates any more."""
    files = generated()
    for name in present(files).keys() - files.keys():
        (ROOT / name).unlink()
    for name, text in files.items():
        (ROOT / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
