"""The wire of ADK's API server: its events, requests and sessions as JSON."""

from safepoint.protocols.adk.events import encode, encode_failure
from safepoint.protocols.event_stream import Wire

WIRE = Wire(encode, encode_failure)
