"""Sockets: every transport feeds the same session loop, which knows nothing about commands."""
