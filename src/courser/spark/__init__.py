"""Courser and Apache Spark: the data source `courser`, and sessions that are set up for it."""
