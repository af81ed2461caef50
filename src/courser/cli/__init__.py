"""The command line: the only place that prints. Data goes to stdout, talk to stderr.

Commands are loaded when they are called, and rich only when there is something to draw: ``courser --help`` is quick.
"""
