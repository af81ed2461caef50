"""Tables in files: Parquet with names that say which offsets are inside, Delta and Iceberg."""
