"""What a running server tells other programs through files: its effective configuration, its certificate."""

import os
from pathlib import Path

from courser.server.configuration.effective import to_toml
from courser.server.configuration.kinds import Address
from courser.server.configuration.loading import Configuration

CONFIGURATION = "current_config.toml"
CERTIFICATE = "tcp_certificate.pem"
_HEAD = "# The effective configuration of the server that was started last. Nobody reads it back.\n"


def write_configuration(directory: Path, configuration: Configuration, address: Address) -> None:
    """Say with which settings the server runs, and on which port it really listens."""
    _replace(directory / CONFIGURATION, f"{_HEAD}\n{to_toml(configuration, tcp_address=str(address))}".encode())


def write_certificate(directory: Path, pem: bytes) -> None:
    """Hand out the certificate, for clients that are to trust it."""
    _replace(directory / CERTIFICATE, pem)


def masked_configuration(configuration: Configuration) -> bytes:
    """The same for a diagnosis."""
    return to_toml(configuration, with_sources=True).encode()


def _replace(path: Path, data: bytes) -> None:
    """In one step for whoever reads it. Not synced: after a crash nobody needs it."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)
