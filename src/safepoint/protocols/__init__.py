"""Wire formats. A protocol encodes the feed of `safepoint.serving` and submits to it; none imports the server."""
