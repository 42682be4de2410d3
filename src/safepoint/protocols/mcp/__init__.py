"""Agents, and Safepoint's own tools, as tools of the Model Context Protocol: over stdio and over streamable HTTP.

A call of a tool is a run of the run manager; the request only waits for it. A client that cancels its request stops
the run NOW, and the end is recorded before the request is given up.
"""
