"""The laboratory: yardsticks now, experiments and their verdicts on top of them."""
