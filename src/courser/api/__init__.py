"""Verbs: what a client can ask for and what it is told, one structure each, whatever bytes carried them."""
