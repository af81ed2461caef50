"""Tells addresses such as ``s3a://lake/orders`` from paths of this machine.

Python takes both for paths: it would create a local folder that is named like the address, and nobody would notice.
"""

import re
from os import PathLike, fspath

from courser.errors import ClientFailure

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")


class AddressGiven(ClientFailure):
    """An address was given where only a path of this machine works."""


def is_address(place: str | PathLike[str]) -> bool:
    """Whether this is an address, also after Python has shortened its slashes."""
    return _ADDRESS.match(fspath(place)) is not None


def scheme_of(address: str) -> str:
    """The part before the colon."""
    return address.partition(":")[0].lower()


def without_file_scheme(place: str) -> str:
    """``file:///a`` as the path ``/a``: both are the same folder, and must have the same lock."""
    found = _ADDRESS.match(place)
    return f"/{place[found.end() :]}" if found and found[1].lower() == "file" else place


def check_local(place: str | PathLike[str], what: str) -> None:
    """Raises ``AddressGiven`` for an address; ``what`` begins the sentence."""
    text = fspath(place)
    if found := _ADDRESS.match(text):
        scheme, rest = found[1], text[found.end() :]
        if scheme.lower() == "file":
            raise AddressGiven(f"{what} must be a path without file:, so write /{rest}")
        raise AddressGiven(
            f"{what} must be a local or mounted folder or file, not the address {scheme}://{rest}; mount the store, or "
            "read the format courser in a program and let Spark write there"
        )
