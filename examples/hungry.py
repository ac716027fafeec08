"""Takes memory until somebody stops it."""

blocks = []
while True:
    blocks.append(b"x" * 2**24)
