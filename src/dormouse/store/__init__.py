"""Everything a run writes: its directory, its metrics, its checkpoints, and where its numbers came from."""
