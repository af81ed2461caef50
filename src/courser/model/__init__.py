"""Nouns: frozen values without bytes and without I/O."""
