"""Offline tools over storage: show the contents of a file, and check a directory.

A pure library. It opens nothing for writing, takes no lock, and prints nothing; ``courser.cli`` shows its results.
"""
