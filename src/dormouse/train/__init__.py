"""Training: one step, the loop around it, evaluation, and what keeps a run safe."""
