-- Units of work, and what is done once in a while.

-- -- units of work ----------------------------------------------------------------------------------------------------

-- All locks of a transaction at once and in one order, so that two of them never wait for each other.
CREATE OR REPLACE FUNCTION safepoint.lock(names text[], run_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    lock_key bigint;
BEGIN
    FOR lock_key IN
        SELECT DISTINCT hashtextextended(name, 0) FROM (
            SELECT unnest(names) AS name
            UNION SELECT 's:' || session FROM safepoint.run_records WHERE run_id = ANY (run_ids)) AS all_names
        ORDER BY 1
    LOOP
        PERFORM pg_advisory_xact_lock(lock_key);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION safepoint.commit_unit(unit jsonb, worker text, process text, lease float8)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    op jsonb;
    result jsonb;
    results jsonb := '[]';
    epochs jsonb := '{}';
    topics text[] := '{}';
BEGIN
    -- Was it done before, and the answer lost?
    IF unit ? 'receipt' THEN
        SELECT r.results INTO result FROM safepoint.receipts r WHERE r.id = (unit->>'receipt')::uuid;
        IF FOUND THEN
            RETURN result;
        END IF;
    END IF;
    IF unit ? 'written' AND EXISTS (SELECT 1 FROM safepoint.sessions WHERE id = unit->'written'->>0
            AND epoch = (unit->'written'->>1)::bigint AND number >= (unit->'written'->>2)::bigint) THEN
        RETURN NULL;
    END IF;
    FOR op IN SELECT value FROM jsonb_array_elements(unit->'ops') LOOP
        result := 'null';
        CASE op->>'op'
            WHEN 'append' THEN
                PERFORM safepoint.append_changes(op, coalesce(op->>'epoch', epochs->>(op->>'session'))::bigint);
            WHEN 'claim' THEN
                result := to_jsonb(safepoint.claim_session(op, worker, process, lease));
                epochs := epochs || jsonb_build_object(op->>'session', result);
            WHEN 'move' THEN
                topics := topics || safepoint.move_run(op);
                result := safepoint.record_json(op->>'run');
            WHEN 'accept' THEN
                topics := topics || safepoint.accept_run(op, worker, process, lease);
            WHEN 'take' THEN
                topics := topics || safepoint.take_run(op, worker, process, lease);
                result := safepoint.record_json(op->>'run');
            WHEN 'create' THEN
                INSERT INTO safepoint.sessions (id, state, epoch)
                    VALUES (op->>'session', op->>'state', (op->>'epoch')::bigint) ON CONFLICT DO NOTHING;
                IF NOT FOUND THEN
                    PERFORM safepoint.refuse('SPEXI', jsonb_build_object('session', op->>'session'));
                END IF;
            WHEN 'release' THEN
                UPDATE safepoint.sessions SET owner = NULL
                    WHERE id = op->>'session' AND claimant = op->>'claimant';
            WHEN 'late' THEN
                IF NOT EXISTS (SELECT 1 FROM safepoint.sessions WHERE id = op->>'session') THEN
                    PERFORM safepoint.refuse('SPNOS', jsonb_build_object('session', op->>'session'));
                END IF;
                PERFORM safepoint.add_late(op->>'session', op->'late');
            WHEN 'delete' THEN PERFORM safepoint.delete_session(op->>'session');
            WHEN 'forget_runs' THEN PERFORM safepoint.forget_runs(op->>'session');
            WHEN 'touch' THEN
                INSERT INTO safepoint.session_marks (session, at) VALUES (op->>'session', (op->>'at')::float8)
                    ON CONFLICT (session) DO UPDATE SET at = excluded.at;
            WHEN 'request' THEN result := to_jsonb(safepoint.request_cancel(op));
            WHEN 'acknowledge' THEN
                UPDATE safepoint.cancel_requests SET acknowledged = true WHERE number = (op->>'number')::bigint;
            WHEN 'answer' THEN
                UPDATE safepoint.cancel_requests SET answer = op->>'answer' WHERE number = (op->>'number')::bigint;
                topics := topics || ARRAY(SELECT safepoint.topic('r', run_id) FROM safepoint.cancel_requests
                    WHERE number = (op->>'number')::bigint);
            WHEN 'withdraw' THEN
                DELETE FROM safepoint.cancel_requests WHERE run_id = op->>'run' AND ask_id = op->>'ask_id';
            WHEN 'share' THEN
                -- In the order of the names: two that share the same values never wait for each other.
                INSERT INTO safepoint.shared_values AS v (place, name, value)
                    SELECT op->>'place', key, value FROM jsonb_each_text(op->'kept') ORDER BY key COLLATE "C"
                    ON CONFLICT (place, name) DO UPDATE SET value = excluded.value;
                DELETE FROM safepoint.shared_values WHERE place = op->>'place'
                    AND name IN (SELECT jsonb_array_elements_text(op->'gone'));
            WHEN 'read_shared' THEN
                SELECT coalesce(jsonb_object_agg(name, value), '{}') INTO result FROM safepoint.shared_values
                    WHERE place IN (SELECT jsonb_array_elements_text(op->'places'));
            WHEN 'note' THEN
                INSERT INTO safepoint.session_notes (session, at, body)
                    VALUES (op->>'session', (op->>'at')::float8, op->>'body');
            WHEN 'forget_notes' THEN DELETE FROM safepoint.session_notes WHERE session = op->>'session';
            WHEN 'freeze' THEN
                INSERT INTO safepoint.freezes (id, at, body) VALUES (op->>'id', (op->>'at')::float8, op->>'body')
                    ON CONFLICT (id) DO UPDATE SET at = excluded.at, body = excluded.body;
            WHEN 'thaw' THEN
                DELETE FROM safepoint.freezes WHERE id = op->>'id';
                result := to_jsonb(FOUND);
            WHEN 'audit' THEN
                INSERT INTO safepoint.audit (run_id, body) VALUES (op->>'run', op->>'body')
                    RETURNING to_jsonb(number) INTO result;
            WHEN 'open_loop' THEN result := to_jsonb(safepoint.open_loop(op, worker, process, lease));
            WHEN 'change_loop' THEN
                IF NOT EXISTS (SELECT 1 FROM safepoint.loop_claims
                        WHERE id = op->>'loop' AND epoch = (op->>'epoch')::bigint) THEN
                    PERFORM safepoint.refuse('SPLSU', jsonb_build_object('loop', op->>'loop'));
                END IF;
                PERFORM safepoint.change_loop(op->>'loop', value) FROM jsonb_array_elements(op->'changes');
            WHEN 'release_loop' THEN
                DELETE FROM safepoint.loop_claims WHERE id = op->>'loop' AND claimant = op->>'claimant';
            WHEN 'replace_loop' THEN
                DELETE FROM safepoint.loop_items WHERE loop = op->>'loop';
                DELETE FROM safepoint.loop_turns WHERE loop = op->>'loop';
                DELETE FROM safepoint.loop_messages WHERE loop = op->>'loop';
                PERFORM safepoint.change_loop(op->>'loop', value) FROM jsonb_array_elements(op->'changes');
        END CASE;
        results := results || jsonb_build_array(result);
    END LOOP;
    topics := topics || ARRAY(SELECT jsonb_array_elements_text(unit->'topics'));
    IF cardinality(topics) > 0 THEN
        PERFORM safepoint.push(topics);
    END IF;
    IF unit ? 'receipt' THEN
        INSERT INTO safepoint.receipts (id, results) VALUES ((unit->>'receipt')::uuid, results);
    END IF;
    RETURN results;
END $$;

-- Several units, one after the other: one that is refused takes only itself back.
CREATE OR REPLACE FUNCTION safepoint.commit_units(
    units jsonb, locks text[], run_ids text[], worker text, process text, lease float8
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    unit jsonb;
    outcomes jsonb := '[]';
    code text;
    message text;
    detail text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- In any other level the statements below would not see what was committed while this one waited for a lock.
        PERFORM safepoint.refuse('SPISO', '{}');
    END IF;
    PERFORM safepoint.lock(locks, run_ids);
    IF jsonb_array_length(units) = 1 THEN
        RETURN jsonb_build_array(jsonb_build_object(
            'results', safepoint.commit_unit(units->0, worker, process, lease)));
    END IF;
    FOR unit IN SELECT value FROM jsonb_array_elements(units) LOOP
        BEGIN
            outcomes := outcomes || jsonb_build_array(jsonb_build_object(
                'results', safepoint.commit_unit(unit, worker, process, lease)));
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
            outcomes := outcomes || jsonb_build_array(jsonb_build_object(
                'code', code, 'message', message, 'detail', detail));
        END;
    END LOOP;
    RETURN outcomes;
END $$;

-- -- looking after it all ---------------------------------------------------------------------------------------------

-- The poll leg: whether requests wait that no push has told of.
CREATE OR REPLACE FUNCTION safepoint.renew(worker text, process text, lease float8) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM safepoint.renew_worker(worker, process, lease);
    RETURN EXISTS (SELECT 1 FROM safepoint.cancel_requests c JOIN safepoint.run_records r USING (run_id)
        WHERE NOT c.acknowledged AND r.owner = worker AND r.state <> 'ended');
END $$;

-- One batch: sessions after an id that were not changed for so long, that no run has, with everything of theirs.
-- A session that a writer has locked is in use, and skipped: no run waits for this.
CREATE OR REPLACE FUNCTION safepoint.prune_sessions(older_than float8, after text, at_most int,
    OUT last_id text, OUT deleted int) LANGUAGE plpgsql AS $$
DECLARE
    old record;
BEGIN
    deleted := 0;
    FOR old IN SELECT id, changed_at, owner FROM safepoint.sessions WHERE id > after ORDER BY id LIMIT at_most LOOP
        last_id := old.id;
        CONTINUE WHEN old.changed_at > clock_timestamp() - make_interval(secs => older_than);
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended('s:' || old.id, 0));
        CONTINUE WHEN EXISTS (SELECT 1 FROM safepoint.sessions s WHERE s.id = old.id AND (s.changed_at > old.changed_at
            OR s.owner IS NOT NULL AND NOT safepoint.is_dead(s.owner)));
        CONTINUE WHEN EXISTS (SELECT 1 FROM safepoint.run_records WHERE session = old.id AND state <> 'ended');
        PERFORM safepoint.delete_session(old.id);
        PERFORM safepoint.forget_runs(old.id);
        DELETE FROM safepoint.session_notes WHERE session = old.id;
        deleted := deleted + 1;
    END LOOP;
END $$;

-- What only a failure leaves behind: receipts that nobody will ask for, workers that own nothing and their watches.
CREATE OR REPLACE FUNCTION safepoint.tidy() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM safepoint.receipts WHERE id IN (
        SELECT id FROM safepoint.receipts WHERE at < clock_timestamp() - interval '1 hour' ORDER BY at LIMIT 1000
        FOR UPDATE SKIP LOCKED);
    PERFORM safepoint.retire_worker(w.id) FROM safepoint.workers w
        WHERE w.lease_until < clock_timestamp() - interval '1 hour';
END $$;
