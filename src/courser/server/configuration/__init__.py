"""Configuration: one table of keys, filled from file, environment and command line, and turned into settings."""
