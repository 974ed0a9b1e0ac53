"""Workloads, runs and reports: the demo and the measurements. Never asserts a time."""
