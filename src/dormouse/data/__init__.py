"""Bytes: the built-in corpus, a user's files, the order of reading in training, and the scored window."""
