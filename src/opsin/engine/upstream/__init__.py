"""Engines of others, reached through the OpenAI chat wire: one core that speaks it, pictures as bytes, never URLs."""
