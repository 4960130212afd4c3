"""Reading a model without changing it."""
