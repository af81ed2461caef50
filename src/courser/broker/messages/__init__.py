"""Sends, polls, searches and stored offsets."""
