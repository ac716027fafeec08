"""The HTTP server: `fumehood serve`. Needs the extra `server`."""
