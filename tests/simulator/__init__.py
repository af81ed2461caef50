"""The simulator: servers on a fake disk with a fake clock, driven by a seed, and a model that checks every promise.

``partition_simulation`` runs the logs of partitions, ``catalog_simulation`` the catalog, ``metadata_simulation`` a
whole broker. The tests that use it are in ``tests/crash`` and ``tests/catalog``.
"""
