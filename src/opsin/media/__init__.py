"""Pictures from strangers: data URLs, header walk, limits before allocation, decoding in worker processes."""
