"""Offline tools over storage: what a file holds, and whether a directory is sound.

A pure library. It opens nothing for writing, takes no lock, prints nothing; ``courser.cli`` shows what it yields.
"""
