"""Which names a template may use."""
