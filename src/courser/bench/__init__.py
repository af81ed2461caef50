"""Load on a running server, and what became of it: the modes of ``courser bench`` without their command line.

Actors (producers, consumers) speak the bytes of either wire themselves, in processes of their own, so that neither a
codec nor the interpreter of a single process is what is measured.
"""
