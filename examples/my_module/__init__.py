"""A user's module of trainer callbacks. A template may use it with `allow=["my_module"]`."""
