-- Which free run may start, and how the engine hears of it: in the transaction that made it free.

-- The name of a channel has at most 63 bytes, and the engine puts 23 before it.
CREATE OR REPLACE FUNCTION safepoint.queue_of(app text, target text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN target IS NULL THEN 'sp_' || md5('safepoint.' || app) ELSE 'spw_' || md5(target) END
$$;

-- Procrastinate's functions rely on the search_path, and a pooler may hand on connections with any: it is that of the
-- upgrade, which has found its tables there.
CREATE OR REPLACE FUNCTION safepoint.defer_job(queue text, run text, priority int) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (procrastinate_defer_jobs_v1(ARRAY[ROW(
        queue, 'safepoint.work_on', priority, NULL, NULL, jsonb_build_object('run_id', run), NULL
    )::procrastinate_job_to_defer_v1]))[1];
END $$;

-- It does nothing for a run that is not free, or was placed before. Each tenant's runs get ranks that follow each
-- other, and its first one the rank of the first of all: so tenants take turns, however many runs one of them has.
CREATE OR REPLACE FUNCTION safepoint.place(placed text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    engine text := (SELECT name FROM safepoint.engine);
    known safepoint.run_records;
    whose text;
    meant text;
    turn int;
    given bigint;
BEGIN
    SELECT * INTO known FROM safepoint.run_records WHERE run_id = placed;
    IF NOT FOUND OR known.owner <> '' OR known.state NOT IN ('queued', 'live', 'suspended') THEN
        RETURN;
    END IF;
    IF engine = 'none' THEN
        PERFORM safepoint.offer(known.session);
        RETURN;
    END IF;
    whose := split_part(known.session, '/', 2);
    DELETE FROM safepoint.moves WHERE run_id = placed RETURNING target INTO meant;
    IF meant IS NOT NULL AND safepoint.is_dead(meant) THEN
        meant := NULL;
    END IF;
    turn := greatest((SELECT min(rank) FROM safepoint.placements),
        (SELECT max(rank) + 1 FROM safepoint.placements WHERE tenant = whose), 1);
    INSERT INTO safepoint.placements (run_id, tenant, rank, target) VALUES (placed, whose, turn, meant)
        ON CONFLICT DO NOTHING;
    IF FOUND AND engine = 'procrastinate' THEN
        given := safepoint.defer_job(
            safepoint.queue_of(split_part(known.session, '/', 1), meant), placed, -turn);
        UPDATE safepoint.placements SET job = given WHERE run_id = placed;
    ELSIF FOUND THEN
        PERFORM safepoint.offer(known.session);
    END IF;
END $$;

-- In one session the run that was accepted first is first. A suspended one that is free goes on before later messages.
CREATE OR REPLACE FUNCTION safepoint.place_next(in_session text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    next_run text;
    next_owner text;
BEGIN
    SELECT run_id, owner INTO next_run, next_owner FROM safepoint.run_records
        WHERE session = in_session AND state <> 'ended'
            AND (state IN ('queued', 'live') OR state = 'suspended' AND owner = '')
        ORDER BY accepted LIMIT 1;
    IF next_owner = '' THEN
        PERFORM safepoint.place(next_run);
    END IF;
END $$;

-- One batch of runs of dead workers: they are free, under a new epoch, and placed. A session that a writer has locked
-- is left for the next look. Says how many there were.
CREATE OR REPLACE FUNCTION safepoint.free_the_dead(at_most int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    orphan record;
    freed int := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('safepoint.free_the_dead', 0)) THEN
        RETURN 0;  -- another worker is at it
    END IF;
    FOR orphan IN SELECT run_id, session FROM safepoint.run_records
        WHERE state IN ('queued', 'live', 'suspended') AND owner <> ''
            AND owner IN (SELECT id FROM safepoint.workers WHERE lease_until <= clock_timestamp())
        ORDER BY accepted LIMIT at_most
    LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended('s:' || orphan.session, 0));
        UPDATE safepoint.run_records SET owner = '', epoch = epoch + 1, deaths = deaths + (state = 'live')::int
            WHERE run_id = orphan.run_id AND state IN ('queued', 'live', 'suspended') AND safepoint.is_dead(owner);
        IF FOUND THEN
            freed := freed + 1;
            PERFORM safepoint.place_next(orphan.session);
            PERFORM safepoint.push(ARRAY[safepoint.topic('r', orphan.run_id), safepoint.topic('s', orphan.session)]);
        END IF;
    END LOOP;
    RETURN freed;
END $$;

-- Runs that may start and whose job is lost get another one: an admin may have deleted it, its worker may have died
-- between fetching the job and taking the run, or a target is dead. Says how many there were.
CREATE OR REPLACE FUNCTION safepoint.place_the_forgotten(patience float8) RETURNS int
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    engine text := (SELECT name FROM safepoint.engine);
    before timestamptz := clock_timestamp() - make_interval(secs => patience);
    forgotten record;
    placed int := 0;
BEGIN
    IF engine = 'none' OR NOT pg_try_advisory_xact_lock(hashtextextended('safepoint.place_the_forgotten', 0)) THEN
        RETURN 0;
    END IF;
    DELETE FROM safepoint.placements p WHERE p.at < before AND NOT EXISTS (
        SELECT 1 FROM safepoint.run_records r WHERE r.run_id = p.run_id AND r.owner = '' AND r.state <> 'ended');
    DELETE FROM safepoint.moves m WHERE NOT EXISTS (
        SELECT 1 FROM safepoint.run_records r WHERE r.run_id = m.run_id AND r.state <> 'ended');
    IF engine = 'procrastinate' THEN
        DELETE FROM safepoint.placements p WHERE p.at < before AND (
            p.target IS NOT NULL AND safepoint.is_dead(p.target)
            OR NOT EXISTS (SELECT 1 FROM procrastinate_jobs j WHERE j.id = p.job AND (j.status = 'todo'
                OR j.status = 'doing' AND EXISTS (SELECT 1 FROM procrastinate_events e
                    WHERE e.job_id = j.id AND e.type = 'started' AND e.at > before))));
    END IF;
    FOR forgotten IN SELECT DISTINCT r.session FROM safepoint.run_records r
        WHERE r.owner = '' AND r.state IN ('queued', 'live', 'suspended')
            AND NOT EXISTS (SELECT 1 FROM safepoint.placements p WHERE p.run_id = r.run_id)
        LIMIT 1000
    LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended('s:' || forgotten.session, 0));
        PERFORM safepoint.place_next(forgotten.session);
        placed := placed + 1;
    END LOOP;
    RETURN placed;
END $$;

-- Jobs that died with their worker: their runs have new ones, so nothing is lost with them.
CREATE OR REPLACE FUNCTION safepoint.delete_dead_jobs() RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM procrastinate_jobs j WHERE j.task_name = 'safepoint.work_on' AND (
        j.status NOT IN ('todo', 'doing') OR j.status = 'doing' AND NOT EXISTS (
            SELECT 1 FROM procrastinate_workers w
            WHERE w.id = j.worker_id AND w.last_heartbeat > now() - interval '30 seconds'));
END $$;
