"""fumehood runs code that an agent wrote, sealed off from the machine it runs on, and hands back what came out."""

__version__ = "0.1.0"
