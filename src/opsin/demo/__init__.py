"""The demo model's world: drawn pictures, questions with known answers, the shipped model, ``make demo``."""
