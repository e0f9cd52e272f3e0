"""Engines of others that opsin starts itself: one description per program, one supervisor for all of them."""
