"""Ready-made jobs on Spark: export, replay, audit, compact, usage, backfill, merge. Each a function with a report."""
