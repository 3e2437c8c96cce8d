"""Alerts: how near the limit is, and when memory will be full."""
