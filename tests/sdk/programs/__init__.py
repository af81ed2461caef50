"""What runs inside the environment of a release: the standard library and that release, nothing else."""
