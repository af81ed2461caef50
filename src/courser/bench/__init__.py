"""The load generator behind ``courser bench``, without its command line.

Actors (producers and consumers) use the async client, and run in processes of their own: the speed of a single Python
process does not limit the results.
"""
