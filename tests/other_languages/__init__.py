"""The SDKs of other languages at work: `make test-languages`. They need the tool chains of those languages."""
