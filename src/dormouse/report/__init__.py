"""Plain records to self-contained HTML pages, without torch."""
