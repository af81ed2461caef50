"""The command line: the only package that prints. Data goes to stdout, everything else to stderr.

Commands are imported when they are called, and rich only when something is drawn: ``courser --help`` is fast.
"""
