"""Stand-ins for the disk and the clock, for tests: no real file, no real time, and faults on demand."""
