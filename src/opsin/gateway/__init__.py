"""The front of every engine: admission, preparation, streaming, HTTP routes. Never sees a tensor."""
