"""Experiments, reports and benchmarks: what measures the library, and no user imports."""
