"""Servers and doubles that ship with the product, so that tests and benchmarks need no mocks."""
