"""Who asks, and how much of the server is theirs: keys, limits, turns. Knows no HTTP, no picture and no engine."""
