"""Grades the answers to questions that were mixed into a load, and says what two such runs tell of
one another."""
