"""A run's report: built, merged over ranks, read back, and written as text, table or page."""
