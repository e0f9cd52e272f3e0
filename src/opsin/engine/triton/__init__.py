"""Models behind NVIDIA's Triton Inference Server, reached through its gRPC stream: pictures as bytes, never URLs."""
