"""Consumer groups, their members and generations."""
