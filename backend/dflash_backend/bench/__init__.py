"""Benchmarks of serving: jobs, cells, clean measurements, results that survive a crash."""
