"""Identity of cached things: scopes that no tenant can leave, keys that change when anything about the result does."""
