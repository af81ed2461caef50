"""Object stores that no test can reach: their settings are understood, and a store that is not there is an error."""

import base64
from pathlib import Path

import pytest

from courser.archive.errors import ArchiveFailure, StoreRefused
from courser.archive.object_store import ObjectStore
from courser.archive.settings import StoreKind, StoreSettings

NOWHERE = "http://127.0.0.1:9"
KEY = base64.b64encode(b"a key of an account").decode()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (StoreSettings(kind=StoreKind.S3, bucket="b", key_prefix="p", path_style=False, region="r"), "s3://b/p"),
        (StoreSettings(kind=StoreKind.AZURE, bucket="c", account="a", secret_access_key=KEY), "azure://c"),
    ],
)
def test_settings_are_understood(settings: StoreSettings, name: str) -> None:
    assert ObjectStore(settings).name == name


def test_a_missing_file_with_credentials_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="gcs://b cannot be used"):
        ObjectStore(StoreSettings(kind=StoreKind.GCS, bucket="b", credentials_file=tmp_path / "none.json"))


def test_an_azure_store_that_is_not_there_is_an_error() -> None:
    store = ObjectStore(
        StoreSettings(
            kind=StoreKind.AZURE,
            bucket="c",
            account="a",
            secret_access_key=KEY,
            endpoint=NOWHERE,
        )
    )
    with pytest.raises(ArchiveFailure, match="could not create v1/x"):
        store.put_new("v1/x", b"data")


def test_a_process_that_was_forked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hang: the threads of the library are in its parent alone."""
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(StoreRefused, match="was loaded before this process was forked"):
        ObjectStore(StoreSettings(kind=StoreKind.S3, bucket="b", region="r"))
