"""An archive and its data directory as a version wrote them whose objects did not say which key they have."""

import zipfile
from pathlib import Path

MESSAGES = [b"a", b"b", b"c", b"d", b"f", b"g"]
"""Of partition 0 of ``shop/orders``, in five runs of two servers. ``plant/events`` has one message."""


def unpack(directory: Path) -> Path:
    """Make the directories ``archive`` and ``data``. Returns the first."""
    with zipfile.ZipFile(Path(__file__).parent / "old_form.zip") as recorded:
        recorded.extractall(directory)
    return directory / "archive"
