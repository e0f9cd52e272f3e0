"""From a picture's size to its visual tokens, per model family: arithmetic only, no pixels, no I/O."""
