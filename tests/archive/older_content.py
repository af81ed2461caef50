"""Objects of an archive in a directory that get the content of older ones."""

from pathlib import Path

from courser.archive.objects import ObjectKind, decode_object, encode_object

_KINDS = {"man/*/*/*": ObjectKind.MANIFEST, "meta/*": ObjectKind.METADATA, "root/*/*": ObjectKind.ROOT}
KINDS = list(_KINDS)
"""Patterns for the keys of those that can be older."""


def objects(archive: Path, kind: str) -> list[Path]:
    """All objects of a kind, in the order in which they were written; manifests of the partition that has most."""
    found = sorted(archive.rglob(f"v1/*/{kind}"))
    most = max((path.parent for path in found), key=lambda parent: len(list(parent.iterdir())))
    return [path for path in found if path.parent == most] if kind.startswith("man") else found


def take_older(archive: Path, kind: str) -> None:
    """The newest object gets the content of the first one."""
    first, *_, newest = objects(archive, kind)
    newest.write_bytes(first.read_bytes())


def forge_older(archive: Path, kind: str) -> None:
    """The same, with the key of the newest object in its header: as if it had been written under this key."""
    first, *_, newest = objects(archive, kind)
    keys = [str(path.relative_to(archive)) for path in (first, newest)]
    _, body = decode_object(first.read_bytes(), keys[0], _KINDS[kind])
    origin, _ = decode_object(newest.read_bytes(), keys[1], _KINDS[kind])
    newest.write_bytes(encode_object(_KINDS[kind], keys[1], origin, body))
