"""What users build tests on: a broker in the test's own process."""
