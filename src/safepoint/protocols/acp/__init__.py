"""The Agent Client Protocol, version 1: an agent inside an editor, over stdin and stdout.

    rpc          frames: JSON-RPC 2.0, one object a line, in both directions
    updates      the events of a feed as `session/update`
    content      what a person sends, as the parts of a message
    permissions  questions of a run as `session/request_permission`, and what the person's choice answers
    client_servers  the MCP servers that a client brings
    turn         one `session/prompt`: its runs, its questions, how it ended
    agent        the methods of the protocol, on one run manager
    stdio        the two streams of the process, kept clean of everything else

The models of the protocol's own package (`acp.schema`) check every frame that comes in and make every frame that goes
out. Its connection is not used: it gives no answer to a frame that is not JSON, stops reading after one that is not an
object, and knows no `$/cancel_request`.
"""
