"""``python -m torch_cute_backend`` and ``torch-cute``: one file a subcommand."""
