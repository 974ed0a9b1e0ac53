"""Tests of ringline; `tests.peers` holds the stock programs they run against."""
