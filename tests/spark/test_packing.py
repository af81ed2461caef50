"""What goes into an archive for workers. That workers with nothing installed run it is tested in ``test_cluster``."""

import tarfile
from pathlib import Path

import pytest

from courser.spark.packing import PackFailed, instructions, make_pack, pack_settings


def test_a_package_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackFailed, match=r"^no-such-package is not installed in /.*; install it there"):
        make_pack(tmp_path / "pack.tar.gz", ["no-such-package"])
    assert not list(tmp_path.iterdir())


def test_each_way_to_run_spark_is_told_where_the_python_is() -> None:
    text = instructions(Path("/data/courser.tar.gz"))
    assert "--pack /data/courser.tar.gz" in text
    assert 'addArtifact("/data/courser.tar.gz#environment", archive=True)' in text
    assert text.count("./environment/bin/python") >= 4


def test_yarn_has_a_setting_of_its_own() -> None:
    assert pack_settings("p.tar.gz", "yarn")["spark.yarn.dist.archives"] == "p.tar.gz#environment"
    assert pack_settings("p.tar.gz", "spark://h:1")["spark.archives"] == "p.tar.gz#environment"


@pytest.mark.slow
def test_an_archive_has_an_interpreter_and_more_packages_if_asked_for_but_no_tests(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack.tar.gz", ["courser[lake]"])
    assert {"courser", "pyarrow", "numpy", "deltalake", "pyiceberg", "sqlalchemy"} <= {
        name.lower() for name in pack.packages
    }
    with tarfile.open(pack.path) as archive:
        names = archive.getnames()
    assert "bin/python" in names
    assert not [name for name in names if "/tests/" in name or "__pycache__" in name or "/pyspark/" in name]
    assert [name for name in names if "_courser_frame_walk" in name]
