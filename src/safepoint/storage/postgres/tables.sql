-- Version 1. Every name is qualified: a pooler may hand any connection to any process, so no search_path is relied on.
--
-- Text that is not JSON has gone through `text_codec`, JSON is ASCII: both can hold every Python string. COLLATE "C"
-- sorts by code point, as Python does, and lets an index serve "begins with".

CREATE TABLE safepoint.schema_version (version int NOT NULL);

CREATE TABLE safepoint.workers (
    id text COLLATE "C" PRIMARY KEY,
    process text NOT NULL,
    lease float8 NOT NULL,
    lease_until timestamptz NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE TABLE safepoint.sessions (
    id text COLLATE "C" PRIMARY KEY,
    state text NOT NULL,
    epoch bigint NOT NULL,
    number bigint NOT NULL DEFAULT 0,
    owner text COLLATE "C",
    claimant text COLLATE "C",
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);  -- every write changes this row, and none of its indexed columns

CREATE TABLE safepoint.messages (
    session text COLLATE "C" NOT NULL,
    place int NOT NULL,
    body text NOT NULL,
    at float8 NOT NULL,
    PRIMARY KEY (session, place)
);

CREATE TABLE safepoint.runs (
    session text COLLATE "C" NOT NULL,
    number int NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    agent text NOT NULL,
    place int NOT NULL,
    ended boolean NOT NULL,
    stop_reason text,
    checkpoint_id text COLLATE "C",
    checkpoint text,
    dropped text,  -- what is left of the checkpoint once another turn follows
    state_before text NOT NULL,
    origin text COLLATE "C" NOT NULL,
    counted text,
    PRIMARY KEY (session, number)
);
CREATE INDEX runs_by_id ON safepoint.runs (session, run_id);

CREATE TABLE safepoint.calls (
    session text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    call_id text COLLATE "C" NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    entry text NOT NULL,
    memory text,
    PRIMARY KEY (session, run_id, call_id)
);

CREATE TABLE safepoint.inside (
    session text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    fact text NOT NULL,
    PRIMARY KEY (session, run_id, number)
);

CREATE TABLE safepoint.late (
    session text COLLATE "C" NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    call_id text NOT NULL,
    name text NOT NULL,
    content text NOT NULL,
    PRIMARY KEY (session, number)
);

CREATE TABLE safepoint.run_records (
    run_id text COLLATE "C" PRIMARY KEY,
    session text COLLATE "C" NOT NULL,
    state text NOT NULL,
    created_at float8 NOT NULL,
    owner text COLLATE "C" NOT NULL,
    request text NOT NULL,
    key text COLLATE "C",
    digest text COLLATE "C",
    started_at float8,
    ended_at float8,
    outcome text,
    reason text,
    epoch bigint NOT NULL,
    asked_by text NOT NULL,
    usage text,
    accepted bigint GENERATED ALWAYS AS IDENTITY  -- the order of one session, whose runs are accepted one by one
) WITH (fillfactor = 80);
CREATE INDEX run_records_by_session ON safepoint.run_records (session, created_at);
CREATE INDEX run_records_by_age ON safepoint.run_records (created_at, run_id);
CREATE INDEX run_records_open ON safepoint.run_records (owner) WHERE state <> 'ended';
CREATE INDEX run_records_unended ON safepoint.run_records (session) WHERE state <> 'ended';
CREATE INDEX run_records_by_key ON safepoint.run_records (session, key) WHERE key IS NOT NULL;

CREATE TABLE safepoint.session_marks (session text COLLATE "C" PRIMARY KEY, at float8 NOT NULL);

CREATE TABLE safepoint.cancel_requests (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL,
    ask_id text COLLATE "C",
    ask text NOT NULL,
    acknowledged boolean NOT NULL,
    answer text
);
CREATE INDEX cancel_requests_by_run ON safepoint.cancel_requests (run_id);
CREATE INDEX cancel_requests_unheard ON safepoint.cancel_requests (run_id) WHERE NOT acknowledged;

CREATE TABLE safepoint.shared_values (
    place text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (place, name)
);

CREATE TABLE safepoint.session_notes (
    session text COLLATE "C" NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    at float8 NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (session, number)
);

CREATE SEQUENCE safepoint.loop_epochs;
CREATE TABLE safepoint.loop_claims (
    id text COLLATE "C" PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    claimant text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL
);
CREATE TABLE safepoint.loop_items (
    loop text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    value text NOT NULL,
    turn text COLLATE "C",
    joining boolean NOT NULL,
    PRIMARY KEY (loop, number)
);
CREATE TABLE safepoint.loop_turns (
    loop text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    state text NOT NULL,
    runs text[] NOT NULL,
    error text,
    checkpoint text,
    PRIMARY KEY (loop, key)
);
-- The conversation between turns has the turn '', the conversation of a checkpoint has that of its turn.
CREATE TABLE safepoint.loop_messages (
    loop text COLLATE "C" NOT NULL,
    turn text COLLATE "C" NOT NULL,
    place int NOT NULL,
    message text NOT NULL,
    PRIMARY KEY (loop, turn, place)
);

-- What a unit of work came to, for a writer that lost the answer. Kept for an hour.
CREATE TABLE safepoint.receipts (
    id uuid PRIMARY KEY,
    results jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX receipts_by_age ON safepoint.receipts (at);

-- Which worker wants to hear of changes of which run or session; see `safepoint.push`.
CREATE TABLE safepoint.watches (
    topic text COLLATE "C" NOT NULL,
    worker text COLLATE "C" NOT NULL,
    PRIMARY KEY (topic, worker)
);
