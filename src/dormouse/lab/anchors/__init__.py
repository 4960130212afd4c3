"""Classical yardsticks in bits per byte: counting tables and compressors, on the bytes models score."""
