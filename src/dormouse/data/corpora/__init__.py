"""Files of the built-in corpus (see NOTICE); only data, no code."""
