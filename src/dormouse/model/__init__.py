"""The network on one device: modules and the records that forward returns."""
