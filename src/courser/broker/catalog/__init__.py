"""Metadata: changes that are made durable and carried out, limits, purges, and finding what a command names."""
