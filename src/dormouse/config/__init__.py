"""What a run is, without torch."""
