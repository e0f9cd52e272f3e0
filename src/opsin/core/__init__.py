"""What every package shares: errors, identifiers, stages, the conversation. Standard library only."""
