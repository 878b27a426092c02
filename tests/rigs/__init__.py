"""Real servers that the tests run against."""
