"""opsin: a safe, cached, measured serving system for vision-language models."""

__version__ = "0.1.0"
