"""Files and tables that other tools read: Parquet folders, Delta, Iceberg. Independent of Spark and of topics."""
