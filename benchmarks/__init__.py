"""Measurements behind the budgets; each prints a table and, as its last line, one JSON object."""
