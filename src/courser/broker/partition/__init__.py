"""One partition and the registry of all: its log, its disk work, its readers."""
