"""Object stores: S3 and compatible ones, Google Cloud Storage, Azure. The only module that imports obstore.

obstore's own retries would turn a lost reply into "already exists", so requests that create an object are never
retried there. It hangs after a fork: nothing forks in a process that uses this module, and a child of such a process is
refused. Its blocking calls leave nothing running, so that the interpreter can end right after them.
"""

import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain, islice
from typing import Any

from courser.archive.errors import ArchiveFailure, ObjectMissing, StoreRefused
from courser.archive.settings import StoreKind, StoreSettings
from courser.archive.store import StoredObject
from courser.model.buffers import Buffer

try:
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
    from obstore.store import AzureStore, GCSStore, S3Store
except ImportError as error:
    missing: ImportError | None = error
else:
    missing = None

_PROCESS_ID = os.getpid()
"""The process that loaded the library."""
_PART_SIZE_MIN = 5 * 1024 * 1024
"""Bytes: S3 refuses smaller parts."""
_UPLOADS_AT_ONCE = 4
_CONNECT_TIMEOUT = timedelta(seconds=10)
_READ_TRY_COUNT = 3


class ObjectStore:
    """Implements ``Store`` over obstore."""

    def __init__(self, settings: StoreSettings) -> None:
        """Open a store. Sends no request.

        Raises:
            StoreRefused: the library is not installed, or the settings are invalid.
        """
        prefix = settings.key_prefix.strip("/")
        self.name = "/".join(part for part in (f"{settings.kind.value}://{settings.bucket}", prefix) if part)
        if missing is not None:
            raise StoreRefused(self.name, "the library obstore is not installed: pip install 'courser[s3]'")
        if os.getpid() != _PROCESS_ID:
            raise StoreRefused(self.name, "the library obstore was loaded before this process was forked")
        self._prefix = f"{prefix}/" if prefix else ""
        self.reports_md5 = settings.kind is StoreKind.S3
        self.keeps_parts = True
        try:
            self._once = _open(settings, try_count=0)
            self._patient = _open(settings, try_count=_READ_TRY_COUNT)
        except (BaseError, ValueError, TypeError) as error:
            raise StoreRefused(self.name, _reason(error)) from error

    def recognize(self) -> None:
        """A bucket is known by its objects alone."""

    def check_place(self) -> None:
        """A bucket is known by its objects alone."""

    def put_new(self, key: str, data: bytes) -> bool:
        return self._create(key, data)

    def _create(self, key: str, data: Buffer) -> bool:
        try:
            obstore.put(self._once, self._prefix + key, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except (BaseError, OSError) as error:
            raise ArchiveFailure("create", key, _reason(error)) from error
        return True

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create an object in one request, or in parts."""
        rest = iter(parts)
        first = list(islice(rest, 2))
        if len(first) < 2:
            self._create(key, first[0] if first else b"")
            return
        try:
            obstore.put(
                self._patient,
                self._prefix + key,
                chain(first, rest),
                use_multipart=True,
                chunk_size=max(len(first[0]), _PART_SIZE_MIN),
                max_concurrency=_UPLOADS_AT_ONCE,
            )
        except (BaseError, OSError) as error:
            raise ArchiveFailure("upload", key, _reason(error)) from error

    def read(self, key: str) -> bytes:
        try:
            return bytes(obstore.get(self._patient, self._prefix + key).bytes())
        except (NotFoundError, FileNotFoundError) as error:
            raise ObjectMissing(key) from error
        except (BaseError, OSError) as error:
            raise ArchiveFailure("read", key, _reason(error)) from error

    def read_range(self, key: str, position: int, size: int) -> Buffer:
        """Bytes of an object, in the memory that they were received in."""
        if not size:
            return b""
        try:
            return memoryview(obstore.get_range(self._patient, self._prefix + key, start=position, length=size))
        except (NotFoundError, FileNotFoundError) as error:
            raise ObjectMissing(key) from error
        except (BaseError, OSError) as error:
            raise ArchiveFailure("read", key, _reason(error)) from error

    def open_file(self, key: str) -> None:
        """An object of a bucket is no file of this machine."""

    def find(self, key: str) -> StoredObject | None:
        try:
            return self._stored(obstore.head(self._patient, self._prefix + key))
        except (NotFoundError, FileNotFoundError):
            return None
        except (BaseError, OSError) as error:
            raise ArchiveFailure("find", key, _reason(error)) from error

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        try:
            for page in obstore.list(self._patient, self._prefix + prefix):
                yield from (self._stored(found) for found in page)
        except (BaseError, OSError) as error:
            raise ArchiveFailure("list", prefix, _reason(error)) from error

    def list_names(self, prefix: str) -> list[str]:
        try:
            found = obstore.list_with_delimiter(self._patient, self._prefix + prefix)
        except (BaseError, OSError) as error:
            raise ArchiveFailure("list", prefix, _reason(error)) from error
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found["common_prefixes"])

    def _stored(self, found: Any) -> StoredObject:
        tag = (found["e_tag"] or "").strip('"')
        modified_at = int(found["last_modified"].timestamp() * 1_000_000)
        return StoredObject(found["path"].removeprefix(self._prefix), found["size"], tag, modified_at)

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._patient, self._prefix + key)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, OSError) as error:
            raise ArchiveFailure("delete", key, _reason(error)) from error


def _open(settings: StoreSettings, *, try_count: int) -> "S3Store | GCSStore | AzureStore":
    timeout = timedelta(microseconds=settings.request_timeout)
    options: Any = {
        "client_options": {
            "timeout": timeout,
            "connect_timeout": min(_CONNECT_TIMEOUT, timeout),
            "allow_http": settings.endpoint.startswith("http://"),
        },
        "retry_config": {"max_retries": try_count, "retry_timeout": timeout},
    }
    match settings.kind:
        case StoreKind.GCS:
            path = settings.credentials_file
            config = _given(service_account=str(path) if path is not None else "", base_url=settings.endpoint)
            if token := settings.session_token:
                options["credential_provider"] = lambda: {"token": token, "expires_at": None}
            return GCSStore(settings.bucket, config=config, **options)
        case StoreKind.AZURE:
            config = _given(
                account_name=settings.account,
                account_key=settings.secret_access_key,
                sas_key=settings.session_token,
                endpoint=settings.endpoint,
            )
            return AzureStore(settings.bucket, config=config, **options)
        case _:
            config = _given(
                access_key_id=settings.access_key_id,
                secret_access_key=settings.secret_access_key,
                session_token=settings.session_token,
                region=settings.region,
                endpoint=settings.endpoint,
            )
            config["virtual_hosted_style_request"] = not settings.path_style
            return S3Store(settings.bucket, config=config, **options)


def _given(**values: str) -> Any:
    """The values that are set. The library looks for the others in the environment and asks the machine for a role."""
    return {name: value for name, value in values.items() if value}


def _reason(error: Exception) -> str:
    """The first line of a message, which may be a page long and contain the whole reply."""
    lines = str(error).strip().splitlines()
    return lines[0][:500] if lines else type(error).__name__
