"""What tests of staged writes share."""

import pytest

from courser.broker import broker
from courser.broker.access.credentials import Passwords


@pytest.fixture(autouse=True)
def _passwords_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start hashes a password that nobody has; hundreds of starts in a test need not."""
    shared = Passwords()
    monkeypatch.setattr(broker, "Passwords", lambda: shared)
