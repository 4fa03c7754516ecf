"""torch_cute_backend."""
