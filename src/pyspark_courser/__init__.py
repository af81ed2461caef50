"""Where Spark looks for the data source: any module named ``pyspark_*`` with a ``DefaultSource``.

If an import fails here, Spark says only that it does not know the format. So every Python that Spark runs on can import
this module, and what is wrong is said to whoever uses the format.
"""

import os
import sys

try:
    if sys.version_info < (3, 11):  # noqa: UP036 -- of all modules, this one is loaded by an older one
        raise ImportError(
            f"Courser needs Python 3.11 or newer, but Spark runs {sys.executable}, which is Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}; set PYSPARK_PYTHON to a newer one that has Courser"
        )
    import courser.spark.releases  # noqa: F401 -- refuses other releases, before an import of what they lack fails
    from courser.spark.data_source import CourserSource as DefaultSource
except ImportError as error:
    from typing import Any

    _reason = str(error)
    if isinstance(error, ModuleNotFoundError):
        _reason = (
            f"Courser is not complete in the Python that Spark runs, {sys.executable}: {error}; set PYSPARK_PYTHON to "
            "one in which pip install 'courser[spark]' was run"
        )

    try:
        from pyspark.sql.datasource import DataSource
    except ImportError:
        # Spark 3.5 knows no Python data sources and does not look here: somebody imports this module.
        raise ImportError(_reason) from None

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Says why the format cannot be used."""

        @classmethod
        def name(cls) -> str:
            """The name of the format."""
            return "courser"

        def __init__(self, options: Any) -> None:
            del options
            # Spark would print the trace first. This process does nothing but create data sources.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise ImportError(_reason)


__all__ = ["DefaultSource"]
