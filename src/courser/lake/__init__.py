"""Files and tables that other tools read: Parquet folders, Delta, Iceberg. Knows nothing of Spark and of topics."""
