"""Test doubles that users build tests on: a fake disk, a manual clock, a broker in the test's own process."""
