"""Who a session is and what it may do: logins, passwords, tokens, permissions."""
