"""Experiments: what is trained and measured for each table and figure."""
