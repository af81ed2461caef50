"""Sockets: each transport feeds the one session loop, which knows no business word."""
