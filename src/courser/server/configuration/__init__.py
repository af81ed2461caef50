"""The configuration of a server: its keys, checks across several of them, and the settings that they become."""
