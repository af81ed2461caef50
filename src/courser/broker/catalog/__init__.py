"""Metadata: changes that are made durable and carried out, quotas, purges, and finding what a command names."""
