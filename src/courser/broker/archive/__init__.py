"""The archive from the server's side: what is captured, confirmed, read back and may be deleted here."""
