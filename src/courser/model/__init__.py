"""The nouns of the domain: frozen values, without encoding and without I/O."""
