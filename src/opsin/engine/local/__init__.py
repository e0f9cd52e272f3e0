"""The local engine: a Transformers model in its own process (:mod:`.worker`), driven from asyncio (:mod:`.engine`)."""
