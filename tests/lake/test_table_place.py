"""Where a table may be, what is refused, and that no secret gets into what is printed."""

from pathlib import Path

import pytest

from courser.archive.settings import StoreKind
from courser.lake.table_place import PlaceRefused, delta_options, store_settings, table_place
from courser.lake.tables import StoreAccess

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "a secret", "AWS_REGION": "eu-central-1"}


def test_a_folder_is_an_iceberg_catalog_with_its_tables(tmp_path: Path) -> None:
    place = table_place("iceberg", path=str(tmp_path), table="shop.orders")
    assert place.catalog_properties({}) == {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": tmp_path.as_uri(),
    }
    assert str(place) == "shop.orders"


@pytest.mark.parametrize(
    ("catalog", "expected"),
    [
        ("https://catalog.example/v1", {"type": "rest", "uri": "https://catalog.example/v1"}),
        ("thrift://metastore:9083", {"type": "hive", "uri": "thrift://metastore:9083"}),
        ("sqlite:////data/catalog.db", {"type": "sql", "uri": "sqlite:////data/catalog.db"}),
        ("glue", {"type": "glue"}),
        ("production", {}),
    ],
)
def test_the_address_of_a_catalog_says_its_kind(catalog: str, expected: dict[str, str]) -> None:
    place = table_place("iceberg", table="shop.orders", catalog=catalog)
    assert place.catalog_properties({}) == expected
    assert place.catalog_name == ("production" if catalog == "production" else "courser")


@pytest.mark.parametrize(
    ("values", "key", "words"),
    [
        ({"format_": "hudi"}, "sink.type", "use iceberg or delta"),
        ({"format_": "delta"}, "sink.path", "needs a place"),
        ({"format_": "delta", "path": "s3://b/t", "table": "a.b"}, "sink.table", "only Iceberg"),
        ({"format_": "delta", "path": "ftp://b/t"}, "sink.path", "ftp:// is no place"),
        ({"format_": "delta", "path": "s3:///t"}, "sink.path", "names no bucket"),
        ({"format_": "delta", "path": "s3://key:secret@b/t"}, "sink.path", "contains credentials"),
        ({"format_": "delta", "path": "s3://b/t", "endpoint": "somewhere"}, "sink.endpoint", "no address"),
        ({"format_": "iceberg", "path": "/data"}, "sink.table", "a namespace and a name"),
        ({"format_": "iceberg", "path": "s3://b/w", "table": "a.b"}, "sink.catalog", "needs a catalog"),
        ({"format_": "iceberg", "table": "a.b", "catalog": "mysql://x"}, "sink.catalog", "is no catalog"),
        ({"format_": "iceberg", "table": "a.b", "catalog": "postgresql://u:p@x/d"}, "sink.catalog", "a password"),
    ],
)
def test_a_place_that_no_table_can_be_at_is_refused_in_one_line(values: dict[str, str], key: str, words: str) -> None:
    with pytest.raises(PlaceRefused, match=words) as refused:
        table_place(values.pop("format_"), **values)
    assert refused.value.key == key
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_keys_come_from_the_environment_and_are_shown_nowhere(tmp_path: Path) -> None:
    place = table_place("delta", path="s3://bucket/tables/orders", endpoint="http://127.0.0.1:9000")
    access = StoreAccess(place.location, place.store_options(KEYS, tmp_path))
    assert "secret" not in repr(access) + repr(place) + str(place)
    settings = store_settings(access)
    assert (settings.kind, settings.bucket, settings.key_prefix) == (StoreKind.S3, "bucket", "/tables/orders")
    assert (settings.access_key_id, settings.secret_access_key) == ("key", "a secret")
    assert "secret" not in repr(settings).replace("secret_access_key", "")
    assert delta_options(access.options) == {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "a secret",
        "aws_region": "eu-central-1",
        "aws_endpoint": "http://127.0.0.1:9000",
        "allow_http": "true",
    }


def test_keys_come_from_the_profile_that_is_named(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[lake]\naws_access_key_id = k\naws_secret_access_key = s%cret\n")
    (tmp_path / ".aws/config").write_text("[profile lake]\nregion = eu-west-1\n")
    place = table_place("delta", path="s3://bucket/orders")
    options = place.store_options({"AWS_PROFILE": "lake"}, tmp_path)
    assert options == {"s3.access-key-id": "k", "s3.secret-access-key": "s%cret", "s3.region": "eu-west-1"}
    assert place.store_options({}, tmp_path) == {}, "without a profile the machine's role is asked"
    with pytest.raises(PlaceRefused, match="the profile other has no keys"):
        place.store_options({"AWS_PROFILE": "other"}, tmp_path)


def test_an_azure_location_names_its_container_and_its_account() -> None:
    plain = store_settings(StoreAccess("az://lake/orders", {"adls.account-name": "shop", "adls.sas-token": "t"}))
    assert (plain.bucket, plain.account, plain.key_prefix, plain.session_token) == ("lake", "shop", "/orders", "t")
    whole = store_settings(StoreAccess("abfss://lake@shop.dfs.core.windows.net/orders"))
    assert (whole.bucket, whole.account, whole.key_prefix) == ("lake", "shop", "/orders")
