"""Ready-made Spark jobs over topics and segments: each a function and a command."""
