"""Where Spark looks for the data source: any module named ``pyspark_*`` with a ``DefaultSource``."""

from courser.spark.data_source import CourserSource as DefaultSource

__all__ = ["DefaultSource"]
