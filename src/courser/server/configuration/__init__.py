"""What an operator can say: one table of keys; file, environment and command line fill it; settings come out of it."""
