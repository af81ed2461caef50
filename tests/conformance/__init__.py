"""One specification of the API, and every transport held against it."""
