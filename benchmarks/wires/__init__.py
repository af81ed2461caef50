"""Both binary protocols, encoded by hand: load generators and tests that need raw requests.

They share no code with the server's codecs, so that a defect there cannot go unnoticed here. Each client waits for the
reply to a request before it sends the next one.
"""
