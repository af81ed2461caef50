"""What Courser's own checkout needs and no user does: the generators of documentation and dashboards."""
