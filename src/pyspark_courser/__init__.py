"""Where Spark looks for the data source: any module named ``pyspark_*`` with a ``DefaultSource``."""
