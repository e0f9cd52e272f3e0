"""Engines behind one contract (:mod:`opsin.engine.api`): local, upstream, fake."""
