"""The load generator behind ``courser bench``, without its command line.

Actors (producers and consumers) encode the requests of both protocols themselves, and run in their own processes. The
results therefore do not depend on the client's codec or on the speed of a single Python process.
"""
