-- Records of runs, requests to cancel them, loops.

-- -- runs -------------------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION safepoint.record_json(id text) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT to_jsonb(r) - 'accepted' FROM safepoint.run_records r WHERE r.run_id = id);
END $$;

-- A live run leaves what its session had stopped behind: see `run_records.is_left_behind`.
CREATE OR REPLACE FUNCTION safepoint.leave_behind(live safepoint.run_records) RETURNS text[] LANGUAGE sql AS $$
    WITH left_behind AS (
        UPDATE safepoint.run_records r SET state = 'ended', epoch = r.epoch + 1
        WHERE r.session = live.session AND r.run_id <> live.run_id AND (r.state = 'paused'
            OR r.state = 'suspended' AND r.started_at IS NOT NULL AND r.created_at <= live.created_at)
        RETURNING r.run_id)
    SELECT array_agg(safepoint.topic('r', run_id)) FROM left_behind
$$;

CREATE OR REPLACE FUNCTION safepoint.accept_run(op jsonb, worker text, process text, lease float8)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    given safepoint.run_records := jsonb_populate_record(NULL::safepoint.run_records, op->'record');
    known safepoint.run_records;
BEGIN
    IF given.key IS NOT NULL THEN
        SELECT * INTO known FROM safepoint.run_records
            WHERE session = given.session AND key = given.key AND created_at >= (op->>'since')::float8
            ORDER BY accepted LIMIT 1;
        IF FOUND THEN
            PERFORM safepoint.refuse(
                CASE WHEN known.digest IS DISTINCT FROM given.digest THEN 'SPKEY' ELSE 'SPACC' END,
                safepoint.record_json(known.run_id));
        END IF;
    END IF;
    IF (op->>'only_first')::boolean THEN
        SELECT * INTO known FROM safepoint.run_records
            WHERE session = given.session AND state IN ('queued', 'live') ORDER BY accepted LIMIT 1;
        IF FOUND THEN
            PERFORM safepoint.refuse('SPFST', safepoint.record_json(known.run_id));
        END IF;
    END IF;
    IF given.owner = worker THEN
        PERFORM safepoint.register(worker, process, lease);
    ELSIF given.owner <> '' THEN  -- every owner has a row, by which its runs are found once it is dead
        INSERT INTO safepoint.workers (id, process, lease, lease_until) VALUES (given.owner, '', 0, '-infinity')
            ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO safepoint.run_records (run_id, session, state, created_at, owner, request, key, digest, started_at,
        ended_at, outcome, reason, epoch, asked_by, usage, deaths)
    VALUES (given.run_id, given.session, given.state, given.created_at, given.owner, given.request, given.key,
        given.digest, given.started_at, given.ended_at, given.outcome, given.reason, given.epoch, given.asked_by,
        given.usage, given.deaths)
    ON CONFLICT (run_id) DO UPDATE SET session = excluded.session, state = excluded.state,
        created_at = excluded.created_at, owner = excluded.owner, request = excluded.request, key = excluded.key,
        digest = excluded.digest, started_at = excluded.started_at, ended_at = excluded.ended_at,
        outcome = excluded.outcome, reason = excluded.reason, epoch = excluded.epoch, asked_by = excluded.asked_by,
        usage = excluded.usage, deaths = excluded.deaths;
    IF given.owner = '' THEN
        PERFORM safepoint.place_next(given.session);
    END IF;
    RETURN CASE WHEN given.state = 'live' THEN safepoint.leave_behind(given) END;
END $$;

CREATE OR REPLACE FUNCTION safepoint.move_run(op jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    known safepoint.run_records;
    new_state text := op->>'state';
BEGIN
    SELECT * INTO known FROM safepoint.run_records WHERE run_id = op->>'run' FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM safepoint.refuse('SPNOR', jsonb_build_object('run', op->>'run'));
    END IF;
    IF known.epoch <> (op->>'epoch')::bigint OR NOT new_state = ANY (CASE known.state
            WHEN 'queued' THEN ARRAY['live', 'suspended', 'ended']
            WHEN 'live' THEN ARRAY['paused', 'suspended', 'ended']
            WHEN 'paused' THEN ARRAY['live', 'ended']
            WHEN 'suspended' THEN ARRAY['queued', 'ended']
            ELSE ARRAY[]::text[] END) THEN
        PERFORM safepoint.refuse('SPMOV', safepoint.record_json(known.run_id));
    END IF;
    IF new_state = 'suspended' THEN
        known.deaths := 0;  -- its worker has lived to store that
    END IF;
    known := jsonb_populate_record(known, op->'changes');
    known.state := new_state;
    UPDATE safepoint.run_records SET state = known.state, created_at = known.created_at, owner = known.owner,
        request = known.request, key = known.key, digest = known.digest, started_at = known.started_at,
        ended_at = known.ended_at, outcome = known.outcome, reason = known.reason, epoch = known.epoch,
        asked_by = known.asked_by, usage = known.usage, deaths = known.deaths
        WHERE run_id = known.run_id;
    IF new_state <> 'live' THEN
        PERFORM safepoint.place_next(known.session);
    END IF;
    RETURN ARRAY[safepoint.topic('s', known.session)]
        || CASE WHEN new_state = 'live' THEN safepoint.leave_behind(known) END;
END $$;

CREATE OR REPLACE FUNCTION safepoint.take_run(op jsonb, worker text, process text, lease float8)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    in_session text;
BEGIN
    UPDATE safepoint.run_records SET owner = op->>'owner', epoch = epoch + 1,
        deaths = deaths + (state = 'live' AND owner <> '' AND op->>'owner' <> '')::int
        WHERE run_id = op->>'run' AND epoch = (op->>'epoch')::bigint AND state <> 'ended'
        RETURNING session INTO in_session;
    IF NOT FOUND THEN
        PERFORM safepoint.refuse('SPTKN', jsonb_build_object('run', op->>'run', 'known',
            EXISTS (SELECT 1 FROM safepoint.run_records WHERE run_id = op->>'run')));
    END IF;
    DELETE FROM safepoint.placements WHERE run_id = op->>'run';
    IF op->>'owner' = worker THEN
        PERFORM safepoint.register(worker, process, lease);
    ELSIF op->>'owner' = '' THEN  -- given back
        PERFORM safepoint.place_next(in_session);
    ELSE
        INSERT INTO safepoint.workers (id, process, lease, lease_until) VALUES (op->>'owner', '', 0, '-infinity')
            ON CONFLICT DO NOTHING;
    END IF;
    RETURN ARRAY[safepoint.topic('s', in_session)];
END $$;

-- The row is the truth; the push, in the same transaction, tells the owner to look at it.
CREATE OR REPLACE FUNCTION safepoint.request_cancel(op jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    given bigint;
BEGIN
    INSERT INTO safepoint.cancel_requests (run_id, ask_id, ask, acknowledged)
        VALUES (op->>'run', op->>'ask_id', op->>'ask', (op->>'acknowledged')::boolean) RETURNING number INTO given;
    IF NOT (op->>'acknowledged')::boolean THEN
        PERFORM pg_notify('safepoint_' || owner, 'w') FROM safepoint.run_records
            WHERE run_id = op->>'run' AND state <> 'ended';
    END IF;
    RETURN given;
END $$;

-- -- loops ------------------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION safepoint.open_loop(op jsonb, worker text, process text, lease float8)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    held safepoint.loop_claims;
    given bigint;
BEGIN
    SELECT * INTO held FROM safepoint.loop_claims WHERE id = op->>'loop';
    IF FOUND AND held.claimant <> op->>'claimant' AND NOT safepoint.is_dead(held.owner) THEN
        PERFORM safepoint.refuse('SPLUP', jsonb_build_object('loop', held.id, 'owner', held.owner,
            'process', (SELECT w.process FROM safepoint.workers w WHERE w.id = held.owner)));
    END IF;
    PERFORM safepoint.register(worker, process, lease);
    given := nextval('safepoint.loop_epochs');
    INSERT INTO safepoint.loop_claims (id, owner, claimant, epoch) VALUES (op->>'loop', worker, op->>'claimant', given)
        ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, claimant = excluded.claimant, epoch = excluded.epoch;
    RETURN given;
END $$;

CREATE OR REPLACE FUNCTION safepoint.set_loop_messages(in_loop text, of_turn text, first int, bodies jsonb)
RETURNS void LANGUAGE sql AS $$
    DELETE FROM safepoint.loop_messages WHERE loop = in_loop AND turn = of_turn AND place >= first;
    INSERT INTO safepoint.loop_messages (loop, turn, place, message)
        SELECT in_loop, of_turn, first + ordinality::int - 1, value
        FROM jsonb_array_elements_text(bodies) WITH ORDINALITY;
$$;

CREATE OR REPLACE FUNCTION safepoint.change_loop(in_loop text, change jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    CASE change->>'c'
        WHEN 'add' THEN
            INSERT INTO safepoint.loop_items (loop, number, value, turn, joining)
                SELECT in_loop, (value->>0)::bigint, value->>1, value->>2, (value->>3)::boolean
                FROM jsonb_array_elements(change->'items')
                ON CONFLICT (loop, number) DO UPDATE
                SET value = excluded.value, turn = excluded.turn, joining = excluded.joining;
        WHEN 'remove' THEN
            DELETE FROM safepoint.loop_items WHERE loop = in_loop
                AND number IN (SELECT value::bigint FROM jsonb_array_elements_text(change->'numbers'));
        WHEN 'move' THEN
            UPDATE safepoint.loop_items SET turn = change->>'turn', joining = (change->>'joining')::boolean
                WHERE loop = in_loop
                AND number IN (SELECT value::bigint FROM jsonb_array_elements_text(change->'numbers'));
        WHEN 'begin' THEN
            INSERT INTO safepoint.loop_turns AS t (loop, key, state, runs)
                VALUES (in_loop, change->>'key', 'begun', ARRAY[change->>'run'])
                ON CONFLICT (loop, key) DO UPDATE SET runs = t.runs || excluded.runs
                WHERE NOT excluded.runs[1] = ANY (t.runs);
        WHEN 'turn' THEN
            INSERT INTO safepoint.loop_turns (loop, key, state, runs, error, checkpoint)
                VALUES (in_loop, change->>'key', change->>'state',
                    ARRAY(SELECT jsonb_array_elements_text(change->'runs')), change->>'error', change->>'checkpoint')
                ON CONFLICT (loop, key) DO UPDATE SET state = excluded.state, runs = excluded.runs,
                    error = excluded.error, checkpoint = excluded.checkpoint;
            PERFORM safepoint.set_loop_messages(in_loop, change->>'key', 0, change->'messages');
        WHEN 'over' THEN
            DELETE FROM safepoint.loop_turns WHERE loop = in_loop AND key = change->>'key';
            DELETE FROM safepoint.loop_messages WHERE loop = in_loop AND turn = change->>'key';
        WHEN 'history' THEN
            PERFORM safepoint.set_loop_messages(in_loop, '', (change->>'index')::int, change->'messages');
    END CASE;
END $$;
