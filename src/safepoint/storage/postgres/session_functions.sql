-- A unit of work is one call of `commit_units`: one statement, one round trip, one transaction. Whatever has to be
-- decided is decided here. Functions that every run needs are in PL/pgSQL, which keeps their plans for the connection;
-- those in SQL are planned at each call. A refusal is an SQLSTATE of the class SP, with its particulars as JSON in the
-- detail.

CREATE OR REPLACE FUNCTION safepoint.refuse(code text, detail jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'refused: %', code USING ERRCODE = code, DETAIL = detail::text;
END $$;

-- -- workers ----------------------------------------------------------------------------------------------------------

-- By this clock alone: the clocks of two machines are never compared.
CREATE OR REPLACE FUNCTION safepoint.is_dead(worker text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN NOT EXISTS (SELECT 1 FROM safepoint.workers w WHERE w.id = worker AND w.lease_until > clock_timestamp());
END $$;

CREATE OR REPLACE FUNCTION safepoint.renew_worker(worker text, process text, lease float8)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO safepoint.workers AS w (id, process, lease, lease_until)
    VALUES (worker, process, lease, clock_timestamp() + make_interval(secs => lease))
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until, lease = excluded.lease
$$;

-- What a worker owns names its row, so the row is there first.
CREATE OR REPLACE FUNCTION safepoint.register(worker text, process text, lease float8)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF safepoint.is_dead(worker) THEN
        PERFORM safepoint.renew_worker(worker, process, lease);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION safepoint.announce(worker text, process text, lease float8, about text, leaves boolean)
RETURNS void LANGUAGE sql AS $$
    SELECT safepoint.renew_worker(worker, process, lease);
    UPDATE safepoint.workers SET info = about, draining = leaves WHERE id = worker
$$;

-- Its runs are free at once. A row stays as long as open runs name it: by it they are found.
CREATE OR REPLACE FUNCTION safepoint.retire_worker(worker text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM safepoint.watches w WHERE w.worker = retire_worker.worker;
    UPDATE safepoint.workers SET lease_until = '-infinity' WHERE id = worker;
    DELETE FROM safepoint.workers w WHERE w.id = retire_worker.worker
        AND NOT EXISTS (SELECT 1 FROM safepoint.run_records r WHERE r.owner = w.id AND r.state <> 'ended');
END $$;

-- -- telling others ---------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION safepoint.topic(kind text, id text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT kind || md5(id)
$$;

-- A push says "look" and nothing else. Without a watch there is none: a NOTIFY in every commit costs two thirds of the
-- commits, because PostgreSQL commits the transactions that notify one by one.
CREATE OR REPLACE FUNCTION safepoint.push(topics text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('safepoint_' || w.worker, w.topic) FROM safepoint.watches w WHERE w.topic = ANY (topics);
END $$;

-- A run that has no owner is offered to one worker that has its app. Whom that does not reach finds the run by looking.
CREATE OR REPLACE FUNCTION safepoint.offer(in_session text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('safepoint_' || chosen.worker, chosen.topic) FROM (
        SELECT w.worker, w.topic FROM safepoint.watches w JOIN safepoint.workers k ON k.id = w.worker
        WHERE w.topic = safepoint.topic('o', split_part(in_session, '/', 1))
            AND k.lease_until > clock_timestamp() AND NOT k.draining
        ORDER BY random() LIMIT 1) AS chosen;
END $$;

-- The session's lock: a writer that has not seen this watch has committed before it, so a look after it sees that.
CREATE OR REPLACE FUNCTION safepoint.watch(topics text[], sessions text[], run_ids text[], worker text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM safepoint.lock(sessions, run_ids);
    INSERT INTO safepoint.watches (topic, worker) SELECT unnest(topics), watch.worker ON CONFLICT DO NOTHING;
END $$;

-- -- sessions ---------------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION safepoint.claim_session(op jsonb, worker text, process text, lease float8)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found_row safepoint.sessions;
BEGIN
    SELECT * INTO found_row FROM safepoint.sessions WHERE id = op->>'session';
    IF NOT FOUND THEN
        PERFORM safepoint.refuse('SPNOS', jsonb_build_object('session', op->>'session'));
    END IF;
    IF found_row.owner IS NOT NULL AND found_row.claimant IS DISTINCT FROM op->>'claimant'
            AND NOT safepoint.is_dead(found_row.owner) THEN
        PERFORM safepoint.refuse('SPBSY', jsonb_build_object(
            'session', found_row.id, 'claimant', found_row.claimant, 'owner', found_row.owner,
            'process', (SELECT w.process FROM safepoint.workers w WHERE w.id = found_row.owner)));
    END IF;
    IF op ? 'expected' AND (op->'expected'->>0 <> found_row.epoch::text
            OR op->'expected'->>1 <> found_row.number::text) THEN
        PERFORM safepoint.refuse('SPOLD', jsonb_build_object('session', found_row.id));
    END IF;
    PERFORM safepoint.register(worker, process, lease);
    UPDATE safepoint.sessions SET owner = worker, claimant = op->>'claimant', epoch = epoch + 1, number = 0,
        changed_at = clock_timestamp() WHERE id = found_row.id;
    RETURN found_row.epoch + 1;
END $$;

CREATE OR REPLACE FUNCTION safepoint.set_messages(in_session text, first int, bodies jsonb, said_at float8)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- A message that stands there already keeps its time.
    INSERT INTO safepoint.messages AS m (session, place, body, at)
    SELECT in_session, first + ordinality::int - 1, value, said_at
    FROM jsonb_array_elements_text(bodies) WITH ORDINALITY
    ON CONFLICT (session, place) DO UPDATE SET body = excluded.body, at = excluded.at WHERE m.body <> excluded.body;
END $$;

CREATE OR REPLACE FUNCTION safepoint.set_calls(in_session text, of_run text, calls jsonb)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_array_length(calls) = 0 THEN
        RETURN;
    END IF;
    INSERT INTO safepoint.calls AS c (session, run_id, call_id, entry, memory)
    SELECT in_session, of_run, value->>0, value->>1, value->>2 FROM jsonb_array_elements(calls)
    ON CONFLICT (session, run_id, call_id)
    DO UPDATE SET entry = excluded.entry, memory = coalesce(excluded.memory, c.memory);
END $$;

CREATE OR REPLACE FUNCTION safepoint.forget_session_run(in_session text, of_run text) RETURNS void LANGUAGE sql AS $$
    DELETE FROM safepoint.runs WHERE session = in_session AND run_id = of_run;
    DELETE FROM safepoint.calls WHERE session = in_session AND run_id = of_run;
    DELETE FROM safepoint.inside WHERE session = in_session AND run_id = of_run;
$$;

CREATE OR REPLACE FUNCTION safepoint.open_run(in_session text, change jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    last safepoint.runs;
    before text;
    first_run text := change->>'run';
BEGIN
    SELECT * INTO last FROM safepoint.runs WHERE session = in_session ORDER BY number DESC LIMIT 1;
    IF change->>'continues' IS NOT NULL THEN
        IF last.checkpoint_id IS DISTINCT FROM change->>'continues' THEN
            PERFORM safepoint.refuse('SPCKP', jsonb_build_object('checkpoint', change->>'continues'));
        END IF;
        before := last.state_before;
        first_run := last.origin;
        PERFORM safepoint.forget_session_run(in_session, last.run_id);
    ELSE
        SELECT state INTO before FROM safepoint.sessions WHERE id = in_session;
        IF last.checkpoint_id IS NOT NULL THEN
            UPDATE safepoint.runs SET checkpoint_id = NULL, checkpoint = dropped, dropped = NULL
                WHERE session = in_session AND run_id = last.run_id;
        END IF;
    END IF;
    PERFORM safepoint.set_messages(in_session, (change->>'index')::int, change->'messages', (change->>'at')::float8);
    DELETE FROM safepoint.messages WHERE session = in_session
        AND place >= (change->>'index')::int + jsonb_array_length(change->'messages');
    -- Its checkpoint has no id: until the run ends, that is what it goes on from, and nobody else may continue it.
    INSERT INTO safepoint.runs (session, number, run_id, agent, place, ended, state_before, origin, checkpoint)
    VALUES (in_session, coalesce(last.number, 0) + 1, change->>'run', change->>'agent', (change->>'index')::int, false,
        before, first_run, change->>'base');
    PERFORM safepoint.set_calls(in_session, change->>'run', change->'calls');
END $$;

CREATE OR REPLACE FUNCTION safepoint.end_run(in_session text, change jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM safepoint.set_messages(in_session, (change->>'index')::int, change->'messages', (change->>'at')::float8);
    DELETE FROM safepoint.messages WHERE session = in_session
        AND place >= (change->>'index')::int + jsonb_array_length(change->'messages');
    DELETE FROM safepoint.inside WHERE session = in_session AND run_id = change->>'run';
    UPDATE safepoint.runs SET ended = true, stop_reason = change->>'stop_reason', counted = NULL,
        checkpoint_id = change->>'checkpoint_id', checkpoint = change->>'checkpoint', dropped = change->>'dropped'
        WHERE session = in_session AND run_id = change->>'run';
    PERFORM safepoint.set_calls(in_session, change->>'run', change->'calls');
END $$;

CREATE OR REPLACE FUNCTION safepoint.change_session(in_session text, change jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    last_run text;
BEGIN
    IF change->>'c' IN ('call', 'count', 'inside') THEN
        SELECT run_id INTO last_run FROM safepoint.runs WHERE session = in_session ORDER BY number DESC LIMIT 1;
    END IF;
    CASE change->>'c'
        WHEN 'open' THEN PERFORM safepoint.open_run(in_session, change);
        WHEN 'end' THEN PERFORM safepoint.end_run(in_session, change);
        WHEN 'say' THEN
            PERFORM safepoint.set_messages(
                in_session, (change->>'index')::int, change->'messages', (change->>'at')::float8);
        WHEN 'call' THEN PERFORM safepoint.set_calls(in_session, last_run, change->'calls');
        WHEN 'count' THEN
            UPDATE safepoint.runs SET counted = change->>'counted' WHERE session = in_session AND run_id = last_run;
        WHEN 'inside' THEN
            INSERT INTO safepoint.inside (session, run_id, fact) VALUES (in_session, last_run, change->>'fact');
        WHEN 'truncate' THEN
            DELETE FROM safepoint.messages WHERE session = in_session AND place >= (change->>'index')::int;
            PERFORM safepoint.forget_session_run(in_session, run_id) FROM safepoint.runs
                WHERE session = in_session AND place >= (change->>'index')::int;
        WHEN 'state' THEN UPDATE safepoint.sessions SET state = change->>'state' WHERE id = in_session;
        WHEN 'late' THEN
            DELETE FROM safepoint.late WHERE session = in_session;
            PERFORM safepoint.add_late(in_session, value) FROM jsonb_array_elements(change->'late');
        WHEN 'release' THEN
            UPDATE safepoint.sessions SET owner = NULL WHERE id = in_session AND claimant = change->>'claimant';
    END CASE;
END $$;

CREATE OR REPLACE FUNCTION safepoint.add_late(in_session text, late jsonb) RETURNS void LANGUAGE sql AS $$
    INSERT INTO safepoint.late (session, call_id, name, content) VALUES (in_session, late->>0, late->>1, late->>2)
$$;

-- The epoch is compared under the session's lock: an owner that was replaced changes nothing.
CREATE OR REPLACE FUNCTION safepoint.append_changes(op jsonb, expected bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    current_epoch bigint;
BEGIN
    SELECT epoch INTO current_epoch FROM safepoint.sessions WHERE id = op->>'session';
    IF NOT FOUND THEN
        PERFORM safepoint.refuse('SPNOS', jsonb_build_object('session', op->>'session'));
    END IF;
    IF current_epoch IS DISTINCT FROM expected THEN
        PERFORM safepoint.refuse('SPSUP', jsonb_build_object('session', op->>'session'));
    END IF;
    PERFORM safepoint.change_session(op->>'session', value) FROM jsonb_array_elements(op->'changes');
    UPDATE safepoint.sessions SET changed_at = clock_timestamp(),
        number = CASE WHEN (op->>'number')::bigint > 0 THEN (op->>'number')::bigint ELSE number + 1 END
        WHERE id = op->>'session';
END $$;

CREATE OR REPLACE FUNCTION safepoint.delete_session(old text) RETURNS void LANGUAGE sql AS $$
    DELETE FROM safepoint.sessions WHERE id = old;
    DELETE FROM safepoint.messages WHERE session = old;
    DELETE FROM safepoint.runs WHERE session = old;
    DELETE FROM safepoint.calls WHERE session = old;
    DELETE FROM safepoint.inside WHERE session = old;
    DELETE FROM safepoint.late WHERE session = old;
$$;

CREATE OR REPLACE FUNCTION safepoint.forget_runs(old text) RETURNS void LANGUAGE sql AS $$
    DELETE FROM safepoint.cancel_requests
        WHERE run_id IN (SELECT run_id FROM safepoint.run_records WHERE session = old);
    DELETE FROM safepoint.placements
        WHERE run_id IN (SELECT run_id FROM safepoint.run_records WHERE session = old);
    DELETE FROM safepoint.run_records WHERE session = old;
    DELETE FROM safepoint.session_marks WHERE session = old;
$$;
