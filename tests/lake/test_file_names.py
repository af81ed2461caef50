"""Names of files and folders in a lake."""

from pathlib import Path

import pytest

from courser.lake.file_names import folder_name, folder_path, range_file_name, range_of_name, value_of_folder


def test_a_file_is_called_after_its_first_and_last_offset() -> None:
    name = range_file_name(1200, 2399)
    assert name == "00000000000000001200-00000000000000002399.parquet"
    assert range_of_name(name) == (1200, 2399)


@pytest.mark.parametrize("name", ["part-0.parquet", "1-2.parquet", "00000000000000001200-00000000000000002399.csv"])
def test_other_files_are_nobodys_range(name: str) -> None:
    assert range_of_name(name) is None


@pytest.mark.parametrize(("first", "last"), [(5, 4), (-1, 3)])
def test_a_range_without_offsets_is_refused(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="invalid range of offsets"):
        range_file_name(first, last)


@pytest.mark.parametrize("value", ["plain", "a/b", "a=b", "50%", "späť", "..", None, "x y"])
def test_a_folder_gives_back_the_value_that_it_was_made_from(value: str | None) -> None:
    name = folder_name("city", value)
    assert "/" not in name
    assert value_of_folder(name) == ("city", value)


def test_columns_nest_in_their_order() -> None:
    assert folder_path(Path("lake"), ["topic", "day"], ["orders", None]) == Path(
        "lake/topic=orders/day=__HIVE_DEFAULT_PARTITION__"
    )


def test_what_has_no_equals_sign_is_no_value() -> None:
    assert value_of_folder("_courser") is None
