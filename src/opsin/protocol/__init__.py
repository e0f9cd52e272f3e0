"""OpenAI's wire format: request and response models, SSE framing. Knows no engine and no media."""
