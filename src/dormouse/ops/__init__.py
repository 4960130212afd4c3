"""Pure tensor functions: no modules, no configuration, each fast path next to its slow obvious reference."""
