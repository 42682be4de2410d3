"""Runs for clients: accepted, queued, run, watched, stopped, taken over. It knows no HTTP and no wire format.

This is the seam for protocols (`safepoint.protocols.<name>`), which translate between a wire and these calls:

    who.session(app, user, session)            ids from outside become a `SessionKey`, if they are the caller's
    await manager.submit(who, key, Submission) a message, an answer, or a run that goes on. It passes through sessions,
                                               `if_busy`, idempotency keys and limits, and gives a `ManagedRun`; or a
                                               `RunRecord`, if the same message was accepted before
    await RunLookup(manager).feed(who, run)    the `Feed` of any run: live here, live in another process, or stored
    feed.view(after, partials=…)               a `Viewer` from a position on; `take()` and `wait()` give frames
    frame.encoded(encode)                      the event in the protocol's words, encoded once for all viewers
    await cancel_all(…), cancel_records(…)     a `StopRequest` for runs of this process, or of others; what came of it
                                               is a `Cancelled` with its receipt. Asked and stopped stay apart
    managed.over                               opens once the end is recorded; `outcome` says how the run ended

What the feed carries is in `serving.events`: messages, partial text and reasoning, tool output; with a message its
author, node path, step, changes of state, calls that wait for a person, and the end of the run.

A protocol over HTTP takes `Manager`, `Who` and `EventStream` from `safepoint.protocols`, offers `routes`, and is named
in `safepoint.server.app`, which mounts it. One over stdio makes a `RunManager` of its own. What one protocol starts can
be watched and stopped through any other.
"""
