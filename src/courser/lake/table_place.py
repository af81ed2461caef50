"""Where a table is, without a single secret: its format, its folder or bucket, and the catalog that knows it.

Credentials never stand beside it. They come from the environment, from a profile of AWS, from the role of the machine,
or from the catalog. A catalog takes its own from where pyiceberg looks: ``PYICEBERG_CATALOG__<NAME>__CREDENTIAL`` and
the like, or the file ``.pyiceberg.yaml``; the name is ``courser`` unless ``sink.catalog`` is one.
"""

import re
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ProfileError
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from courser.archive.settings import StoreKind, StoreSettings
from courser.errors import ClientFailure
from courser.lake.tables import Format, StoreAccess

CATALOG_NAME = "courser"
"""The name of a catalog that is given by its address. A SQL catalog stores it beside each table."""

_SCHEMES = MappingProxyType(
    {
        "s3": StoreKind.S3,
        "s3a": StoreKind.S3,
        "gs": StoreKind.GCS,
        "az": StoreKind.AZURE,
        "abfs": StoreKind.AZURE,
        "abfss": StoreKind.AZURE,
    }
)
_CATALOG_TYPES = MappingProxyType(
    {
        "http": "rest",
        "https": "rest",
        "thrift": "hive",
        "sqlite": "sql",
        "postgresql": "sql",
        "postgresql+psycopg2": "sql",
    }
)
_TABLE = re.compile(r"[^.\s/]+(\.[^.\s/]+)+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

STORE_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "s3.endpoint": "aws_endpoint",
        "s3.region": "aws_region",
        "s3.access-key-id": "aws_access_key_id",
        "s3.secret-access-key": "aws_secret_access_key",
        "s3.session-token": "aws_session_token",
        "s3.force-virtual-addressing": "aws_virtual_hosted_style_request",
        "gcs.service.host": "google_base_url",
        "gcs.oauth2.token": "google_bearer_token",
        "adls.account-name": "azure_storage_account_name",
        "adls.account-key": "azure_storage_account_key",
        "adls.sas-token": "azure_storage_sas_key",
    }
)
"""The options of a store, by pyiceberg's names, which catalogs vend too; and what deltalake calls them."""

_ENVIRONMENT = MappingProxyType(
    {
        "AWS_ENDPOINT_URL_S3": "s3.endpoint",
        "AWS_ENDPOINT_URL": "s3.endpoint",
        "AWS_REGION": "s3.region",
        "AWS_DEFAULT_REGION": "s3.region",
        "AWS_ACCESS_KEY_ID": "s3.access-key-id",
        "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
        "AWS_SESSION_TOKEN": "s3.session-token",
        "AZURE_STORAGE_ACCOUNT_NAME": "adls.account-name",
        "AZURE_STORAGE_ACCOUNT_KEY": "adls.account-key",
        "AZURE_STORAGE_SAS_TOKEN": "adls.sas-token",
    }
)
"""Variables that are handed to tasks, which may run on machines without them. The first one that is set counts."""
_PROFILE_KEYS = MappingProxyType(
    {
        "aws_access_key_id": "s3.access-key-id",
        "aws_secret_access_key": "s3.secret-access-key",
        "aws_session_token": "s3.session-token",
        "region": "s3.region",
    }
)


class PlaceRefused(ClientFailure):
    """A place that no table can be at."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """Where a table is. ``table_place`` checks what people write."""

    format: Format
    location: str = ""
    """Delta: the table. Iceberg: the warehouse, which may be the catalog's own choice. A URL, or an absolute path."""
    table: str = ""
    """Iceberg: the namespace and the name."""
    catalog: str = ""
    """Iceberg: the address of a catalog, ``glue``, or the name of one that pyiceberg's configuration has."""
    endpoint: str = ""
    """The address of a store that is not the provider's own."""
    region: str = ""

    def __str__(self) -> str:
        return self.location if self.format == "delta" else self.table

    @property
    def catalog_name(self) -> str:
        return (
            self.catalog if self.catalog and not _is_address(self.catalog) and self.catalog != "glue" else CATALOG_NAME
        )

    def catalog_properties(self, options: Mapping[str, str]) -> dict[str, str]:
        """What pyiceberg needs to load the catalog, beside its own configuration. ``options``: those of the store."""
        properties = dict(options)
        if self.location:
            properties["warehouse"] = as_url(self.location)
        if self.catalog == "glue":
            properties["type"] = "glue"
        elif _is_address(self.catalog):
            properties |= {"type": _CATALOG_TYPES[urlsplit(self.catalog).scheme], "uri": self.catalog}
        elif not self.catalog:
            # A folder with everything in it. The catalog is a file next to the tables.
            properties |= {"type": "sql", "uri": f"sqlite:///{Path(self.location) / 'catalog.db'}"}
        return properties

    def store_options(self, environment: Mapping[str, str], home: Path) -> dict[str, str]:
        """The options of the store: the credentials of the environment or a profile, and what the place itself says.

        None of them if the machine has a role: every process then asks for it.
        """
        options = _of_environment(environment) or {}
        if "s3.access-key-id" not in options:
            options = _of_profile(environment, home) | options
        given = {"s3.region": self.region}
        if self.endpoint:
            kind = store_kind(self.location) if self.location else StoreKind.S3
            given["gcs.service.host" if kind is StoreKind.GCS else "s3.endpoint"] = self.endpoint
        return options | {name: value for name, value in given.items() if value}


def table_place(
    format_: str, *, path: str = "", table: str = "", catalog: str = "", endpoint: str = "", region: str = ""
) -> TablePlace:
    """Check where a table is meant to be.

    Raises:
        PlaceRefused: says which key is wrong, and what it may be.
    """
    if format_ not in ("iceberg", "delta"):
        raise PlaceRefused("sink.type", f"{format_} is no format of tables; use iceberg or delta")
    location = _location(path) if path else ""
    if format_ == "delta":
        if not location:
            raise PlaceRefused("sink.path", 'a Delta table needs a place, such as "s3://bucket/orders"')
        for key, value in (("sink.catalog", catalog), ("sink.table", table)):
            if value:
                raise PlaceRefused(key, "only Iceberg tables have it; leave it out")
        return TablePlace(format="delta", location=location, endpoint=_endpoint(endpoint), region=region)
    if not _TABLE.fullmatch(table):
        raise PlaceRefused("sink.table", 'an Iceberg table needs a namespace and a name, such as "shop.orders"')
    _check_catalog(catalog)
    if not catalog and (not location or store_kind(location) is not StoreKind.DISK):
        reason = 'an Iceberg table outside of a local folder needs a catalog, such as "https://catalog.example"'
        raise PlaceRefused("sink.catalog", reason)
    return TablePlace(
        format="iceberg", location=location, table=table, catalog=catalog, endpoint=_endpoint(endpoint), region=region
    )


def _location(path: str) -> str:
    """A URL, or an absolute path without ``file:``."""
    if "://" not in path:
        return str(Path(path.removeprefix("file:")).absolute())
    parts = urlsplit(path)
    if parts.scheme == "file":
        return str(Path(parts.path).absolute())
    if parts.scheme not in _SCHEMES:
        known = "a folder, s3://, gs://, az:// or abfss://"
        raise PlaceRefused("sink.path", f"{parts.scheme}:// is no place for a table; use {known}")
    if not parts.netloc:
        raise PlaceRefused("sink.path", f"{path} names no bucket")
    if parts.password is not None or parts.query:
        raise PlaceRefused("sink.path", "it contains credentials; set them in the environment")
    return path.rstrip("/")


def _endpoint(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise PlaceRefused("sink.endpoint", f'{endpoint} is no address such as "http://127.0.0.1:9000"')
    if parts.username is not None or parts.password is not None:
        raise PlaceRefused("sink.endpoint", "it contains credentials; set them in the environment")
    return endpoint.rstrip("/")


def _is_address(catalog: str) -> bool:
    return ":" in catalog


def _check_catalog(catalog: str) -> None:
    if not _is_address(catalog):
        if catalog and not _NAME.fullmatch(catalog):
            raise PlaceRefused("sink.catalog", f"{catalog} is neither an address nor a name")
        return
    parts = urlsplit(catalog)
    if parts.scheme not in _CATALOG_TYPES:
        known = "https:// (REST), thrift:// (Hive), sqlite:///, postgresql://, glue, or a name of .pyiceberg.yaml"
        raise PlaceRefused("sink.catalog", f"{parts.scheme}: is no catalog; use {known}")
    if parts.password is not None:
        variable = f"PYICEBERG_CATALOG__{CATALOG_NAME.upper()}__URI"
        raise PlaceRefused("sink.catalog", f'it contains a password; write "{CATALOG_NAME}", and set {variable}')


def _of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for variable, name in _ENVIRONMENT.items():
        if value := environment.get(variable):
            options.setdefault(name, value)
    return options


def _of_profile(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """The keys of a profile of AWS, if it has any. The store's library does not look there."""
    name = environment.get("AWS_PROFILE") or "default"
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        path = Path(environment.get(variable) or home / ".aws" / file)
        profiles = ConfigParser(interpolation=None)
        try:
            profiles.read(path, "utf-8")
        except (ProfileError, OSError, UnicodeDecodeError) as error:
            # Not the text of the error: it may quote a line with a secret.
            raise PlaceRefused(str(path), "it cannot be read as a file of profiles") from error
        if profiles.has_section(section):
            found |= {_PROFILE_KEYS[key]: value for key, value in profiles.items(section) if key in _PROFILE_KEYS}
    if "AWS_PROFILE" in environment and "s3.access-key-id" not in found:
        raise PlaceRefused("AWS_PROFILE", f"the profile {name} has no keys; export those that it stands for")
    return found


# --- stores -------------------------------------------------------------------------------------------


def as_url(location: str) -> str:
    return location if "://" in location else Path(location).as_uri()


def store_kind(location: str) -> StoreKind:
    return _SCHEMES.get(urlsplit(location).scheme, StoreKind.DISK) if "://" in location else StoreKind.DISK


def store_settings(access: StoreAccess) -> StoreSettings:
    """The store whose keys are relative to the root of ``access``."""
    parts, options = urlsplit(access.root), access.options
    match store_kind(access.root):
        case StoreKind.DISK:
            return StoreSettings(kind=StoreKind.DISK, path=local_path(access.root))
        case StoreKind.S3:
            return StoreSettings(
                kind=StoreKind.S3,
                bucket=parts.netloc,
                key_prefix=parts.path,
                region=options.get("s3.region", ""),
                endpoint=options.get("s3.endpoint", ""),
                path_style=options.get("s3.force-virtual-addressing", "").lower() != "true",
                access_key_id=options.get("s3.access-key-id", ""),
                secret_access_key=options.get("s3.secret-access-key", ""),
                session_token=options.get("s3.session-token", ""),
            )
        case StoreKind.GCS:
            return StoreSettings(
                kind=StoreKind.GCS,
                bucket=parts.netloc,
                key_prefix=parts.path,
                endpoint=options.get("gcs.service.host", ""),
                session_token=options.get("gcs.oauth2.token", ""),
            )
        case StoreKind.AZURE:
            # az://container/path, or abfss://container@account.host/path.
            account = (parts.hostname or "").partition(".")[0] if parts.username else ""
            return StoreSettings(
                kind=StoreKind.AZURE,
                bucket=parts.username or parts.netloc,
                key_prefix=parts.path,
                account=account or options.get("adls.account-name", ""),
                secret_access_key=options.get("adls.account-key", ""),
                session_token=options.get("adls.sas-token", ""),
            )


def local_path(location: str) -> Path:
    """The folder that an absolute path or a ``file:`` URL names."""
    return Path(urlsplit(location).path if location.startswith("file:") else location)


def delta_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a store, as deltalake calls them."""
    named = {STORE_OPTIONS[name]: value for name, value in options.items() if name in STORE_OPTIONS}
    if options.get("s3.endpoint", "").startswith("http://"):
        named["allow_http"] = "true"
    return named
