"""Pipelines: from one TOML file to a Spark query that is kept running."""
